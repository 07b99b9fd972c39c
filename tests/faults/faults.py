"""Deliberate faults, each of which the suite has to catch.

A fault is a small change of one file, of the kinds that people make: a sign, an axis, an index, a
missing mask, a stale or shared key, a shared stream of random numbers, a wrong default, a swallowed
error, a wrong unit, an inverted condition, an option that is not passed on. `tests` are those
of the suite that are to see it, files or parts of them.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """A change of one file, and the tests that see it."""

    name: str
    file: str  # from the root of the checkout
    old: str  # what stands there, exactly once
    new: str
    tests: tuple[str, ...]  # files below tests/, or FILE::TEST


FAULTS = [
    # -------------------------------------------------------------- random keys and streams
    Fault(
        'one crop and dropout key for all steps of local training',
        'dfl_jax/training/local.py',
        'jax.random.split(jax.random.fold_in(k_steps, number))',
        'jax.random.split(k_steps)',
        ('test_local.py::test_every_step_draws_its_own_dropout',),
    ),
    Fault(
        'one order of the samples for all epochs',
        'dfl_jax/training/batches.py',
        'jax.random.uniform(key, (len(mask), epochs)).T',
        'jnp.tile(jax.random.uniform(key, (len(mask), 1)).T, (epochs, 1))',
        ('test_local.py::test_an_epoch_is_a_fresh_permutation_of_the_samples',),
    ),
    Fault(
        'the rounding key of a gossip step reused in the next',
        'dfl_jax/algorithms/gossip_sgd.py',
        'jax.random.split(k_step, len(rows))',
        'jax.random.split(key, len(rows))',
        ('test_gossip_sgd.py::test_every_gossip_step_rounds_anew',),
    ),
    Fault(
        'one rounding key for all tensors of a message',
        'dfl_jax/compression.py',
        'keys = jax.random.split(key, len(leaves))',
        'keys = [key] * len(leaves)',
        ('test_compression.py',),
    ),
    Fault(
        'other dropout in the pass that is taught than in the one that teaches',
        'dfl_jax/heterogeneous/mutual.py',
        '(models[name], group.position, _keys(k_apply, group)),',
        '(models[name], group.position, _keys(k_crop, group)),',
        ('test_dfml.py::test_a_model_learns_with_the_dropout_that_it_teaches_with',),
    ),
    Fault(
        'architectures that share an initialisation key',
        'dfl_jax/heterogeneous/population.py',
        'jax.random.fold_in(key, number), model, len(',
        'key, model, len(',
        ('test_population.py::test_every_architecture_has_an_initialisation_key_of_its_own',),
    ),
    Fault(
        'clients that draw the same weights where they are to be independent',
        'dfl_jax/initialisation.py',
        'jax.random.split(key, clients)',
        'jnp.broadcast_to(key, clients)',
        ('test_models.py::test_independent_initial_weights',),
    ),
    Fault(
        'client dropout from the stream of the links',
        'dfl_jax/cli/experiment/graphs.py',
        "flags.client_dropout, seeds['participation']",
        "flags.client_dropout, seeds['links']",
        ('test_network.py::test_every_failure_has_a_stream_of_its_own',),
    ),
    Fault(
        'isolated clients drawn like clients that are away',
        'dfl_jax/topology/failures.py',
        'Stream.ISOLATED',
        'Stream.CLIENTS',
        ('test_topology.py::test_isolate_clients',),
    ),
    Fault(
        'the order of final averaging from the stream of the split',
        'dfl_jax/analysis/final_averaging.py',
        '[seed, _ORDER]',
        '[seed, _SPLIT]',
        ('test_selection.py::test_the_random_order_has_a_stream_of_its_own',),
    ),
    Fault(
        'two streams of a seed that are one',
        'dfl_jax/cli/experiment/build.py',
        '[seed, number]',
        '[seed, number // 2]',
        ('test_network.py::test_the_streams_of_a_seed_are_all_different',),
    ),
    Fault(
        'a projection that all aggregators share',
        'dfl_jax/algorithms/spark.py',
        'random.draw(jax.random.fold_in(k_layers, number))',
        'random.draw(k_layers)',
        ('test_spark.py::test_three_rounds_equal_the_reference',),
    ),
    Fault(
        'a projection that is never renewed',
        'dfl_jax/algorithms/spark.py',
        "key if self.projection_refresh == 'never' else",
        "key if self.projection_refresh != 'round' else",
        ('test_spark.py::test_three_rounds_equal_the_reference',),
    ),
    # ---------------------------------------------------------------------- masks and padding
    Fault(
        'kernel rows of padding in the evolution',
        'dfl_jax/ntk/evolution.py',
        'kernel = jnp.where(mask[:, None] & mask[None, :], kernel, 0)',
        'kernel = jnp.asarray(kernel)',
        ('test_evolution.py::test_padding_changes_nothing',),
    ),
    Fault(
        'residuals of padding in the evolution',
        'dfl_jax/ntk/evolution.py',
        'return jnp.where(mask, prediction - y, 0)',
        'return prediction - y',
        ('test_evolution.py::test_padding_changes_nothing',),
    ),
    Fault(
        'data of neighbours whose link is lost',
        'dfl_jax/ntk/aggregator_data.py',
        'mask = members.mask & linked[:, None]',
        'mask = members.mask',
        ('test_ntk_dfl.py::test_three_rounds_equal_the_reference',),
    ),
    Fault(
        'class shares that count padding',
        'dfl_jax/training/losses.py',
        'dtype=dtype) * mask[:, None], axis=0)',
        'dtype=dtype), axis=0)',
        ('test_dfml.py::test_rounds_equal_the_reference',),
    ),
    Fault(
        'hits on padding',
        'dfl_jax/metrics.py',
        'jnp.sum(hits & valid, axis=-1, dtype=jnp.int32)',
        'jnp.sum(hits, axis=-1, dtype=jnp.int32)',
        ('test_metrics.py',),
    ),
    Fault(
        'an aggregator without samples mixes a row of zeros',
        'dfl_jax/gossip/mixing.py',
        'keeps = ~(active & (total[:, 0] > 0))',
        'keeps = ~active',
        ('test_mixing.py::test_an_aggregator_that_receives_no_sample_keeps_its_model',),
    ),
    Fault(
        'senders of an absent aggregator that train',
        'dfl_jax/heterogeneous/population.py',
        'delivered = (graph.mask & graph.active[:, None]).ravel()',
        'delivered = graph.mask.ravel()',
        ('test_population.py::test_an_inactive_aggregator_seats_nobody',),
    ),
    # ---------------------------------------------------------- what is chosen, shown, divided by
    Fault(
        'a timestep whose loss is not a number wins',
        'dfl_jax/ntk/update.py',
        '(jnp.where(jnp.isnan(v), jnp.inf, v) for v in (value, at.loss))',
        '(value, at.loss)',
        ('test_ntk_update.py',),
    ),
    Fault(
        "DFML's consensus of the regular models",
        'dfl_jax/algorithms/dfml.py',
        'consensus_of_architectures(population, state.peak, weights)',
        'consensus_of_architectures(population, state.params, weights)',
        ('test_dfml.py::test_the_consensus_is_of_the_peak_models_which_are_evaluated',),
    ),
    Fault(
        'peak models renewed where alpha is lowest',
        'dfl_jax/algorithms/dfml.py',
        'value >= state.best[group.client]',
        'value < state.best[group.client]',
        ('test_dfml.py::test_peak_models_freeze_after_the_first_maximum',),
    ),
    Fault(
        'accuracies of an architecture over the wrong count',
        'dfl_jax/evaluation.py',
        'float(np.mean(more)) / shared',
        'float(np.mean(more)) / samples',
        ('test_simulate.py::test_evaluation_equals_numpy',),
    ),
    Fault(
        'the loss of the consensus over the samples of the clients',
        'dfl_jax/evaluation.py',
        "'consensus_loss': float(losses) / samples",
        "'consensus_loss': float(losses) / shared",
        ('test_simulate.py::test_evaluation_equals_numpy',),
    ),
    Fault(
        'runs of different test sets in one program',
        'dfl_jax/cli/sweep/group.py',
        '        and np.array_equal(other.test.y, first.test.y)\n',
        '',
        ('test_sweep.py::test_runs_of_different_test_sets_are_not_one_program',),
    ),
    Fault(
        'runs of different test inputs in one program',
        'dfl_jax/cli/sweep/group.py',
        '        and np.array_equal(other.test.x, first.test.x)\n',
        '',
        ('test_sweep.py::test_runs_of_different_test_sets_are_not_one_program',),
    ),
    Fault(
        'a shorter run than its flagfile shown without a warning',
        'dfl_jax/cli/tables/curves.py',
        "settings['rounds'] > int(value)",
        "settings['rounds'] != int(value)",
        (
            'test_tables.py::test_a_run_shorter_than_its_flagfile_is_remarked_on_and_a_longer_one_is_not',
        ),
    ),
    Fault(
        'the worst neighbours kept in place of the best',
        'dfl_jax/analysis/final_averaging.py',
        'np.argsort(-rated, axis=1',
        'np.argsort(rated, axis=1',
        ('test_selection.py::test_the_shortlist_keeps_the_better_half_of_the_neighbours',),
    ),
    # ------------------------------------------------------------------- signs, axes, indices
    Fault(
        'Eq. (5b) without 1 / C',
        'dfl_jax/ntk/update.py',
        "scale = rate / n / (model.classes if loss == 'mse' else 1)",
        'scale = rate / n',
        ('test_ntk_dfl.py::test_three_rounds_equal_the_reference',),
    ),
    Fault(
        'a rate that grows where it is to decay',
        'dfl_jax/ntk/update.py',
        'jnp.exp(-self.lr_decay * k)',
        'jnp.exp(self.lr_decay * k)',
        ('test_ntk_dfl.py::test_three_rounds_equal_the_reference',),
    ),
    Fault(
        'the softmax of the evolution over samples',
        'dfl_jax/ntk/evolution.py',
        "f if loss == 'mse' else jax.nn.softmax(f, axis=0)",
        "f if loss == 'mse' else jax.nn.softmax(f, axis=1)",
        ('test_evolution.py::test_euler_equals_a_loop',),
    ),
    Fault(
        'an integrator that accepts every step',
        'dfl_jax/ntk/chebyshev.py',
        'good = finite & (error <= 1)',
        'good = finite',
        ('test_evolution.py::test_the_error_follows_the_tolerance',),
    ),
    Fault(
        'the slope at the end of a step with the other sign',
        'dfl_jax/ntk/chebyshev.py',
        '(rest * at.last_slope - share * at.slope)',
        '(rest * at.last_slope + share * at.slope)',
        ('test_evolution.py::test_rkc_follows_the_gradient_flow',),
    ),
    Fault(
        'annealing that goes up',
        'dfl_jax/ntk/distillation.py',
        '(1 + jnp.cos(jnp.pi * p))',
        '(1 - jnp.cos(jnp.pi * p))',
        ('test_distillation.py',),
    ),
    Fault(
        'a warm-up that ends a round early',
        'dfl_jax/ntk/distillation.py',
        'warm = k <= warmup',
        'warm = k < warmup',
        ('test_distillation.py',),
    ),
    Fault(
        'momentum of SPARK that does not look ahead',
        'dfl_jax/algorithms/spark.py',
        'w + momentum * v + d, w, v, delta)',
        'w + v + 0 * d, w, v, delta)',
        ('test_spark.py::test_three_rounds_equal_the_reference',),
    ),
    Fault(
        'a quantizer that looks at positive weights alone',
        'dfl_jax/compression.py',
        'step = jnp.max(jnp.abs(w)) / levels',
        'step = jnp.max(w) / levels',
        ('test_compression.py::test_the_error_is_within_a_step',),
    ),
    Fault(
        'a level of the quantizer too many',
        'dfl_jax/compression.py',
        'levels = 2 ** (bits - 1) - 1',
        'levels = 2 ** (bits - 1)',
        ('test_compression.py::test_the_levels_are_few_and_symmetric',),
    ),
    Fault(
        'Metropolis weights by the smaller degree',
        'dfl_jax/gossip/mixing.py',
        'largest = xp.maximum(degrees',
        'largest = xp.minimum(degrees',
        ('test_mixing.py::test_weights_agree_with_a_loop',),
    ),
    Fault(
        'the steady vector of the matrix in place of its transpose',
        'dfl_jax/gossip/gain.py',
        'scipy.sparse.csr_array(matrix.T) for matrix in reversed(matrices)',
        'scipy.sparse.csr_array(matrix) for matrix in reversed(matrices)',
        ('test_gain.py::test_steady_vector_is_the_eigenvector_of_eq_3',),
    ),
    Fault(
        'the second eigenvalue without its modulus',
        'dfl_jax/gossip/spectra.py',
        'np.sort(np.abs(eigenvalues))[-2]',
        'np.sort(np.real(eigenvalues))[-2]',
        ('test_topology.py::test_the_second_eigenvalue_may_be_negative',),
    ),
    Fault(
        "Barabasi-Albert's degree taken as 2 m",
        'dfl_jax/topology/families.py',
        '2 * attached * (clients - attached) / clients',
        '2 * attached',
        (
            'test_topology.py::test_the_mean_degree_of_few_nodes_by_preferential_attachment_is_the_nearest',
        ),
    ),
    Fault(
        'links that are lost in one direction',
        'dfl_jax/topology/failures.py',
        'links = row & (low < high)',
        'links = row & (aggregators < members)',
        ('test_topology.py::test_drop_links',),
    ),
    Fault(
        'a client that is away still heard',
        'dfl_jax/topology/failures.py',
        ' & reached[:, :, None] & reached[numbers, graph.members]',
        ' & reached[:, :, None]',
        ('test_topology.py::test_drop_clients',),
    ),
    Fault(
        'an aggregator among its own senders',
        'dfl_jax/topology/aggregators.py',
        'busy = set(chosen)',
        'busy = set()',
        ('test_population.py::test_senders_and_aggregators_are_disjoint',),
    ),
    Fault(
        'FedRolex that rolls the other way',
        'dfl_jax/heterogeneous/submodels.py',
        'rolled = (round % total + jnp.arange(',
        'rolled = (-round % total + jnp.arange(',
        ('test_baselines.py::test_the_channels_of_three_rounds',),
    ),
    Fault(
        'images turned upside down in place of mirrored',
        'dfl_jax/data/augment.py',
        'jnp.where(flip, window[:, ::-1], window)',
        'jnp.where(flip, window[::-1], window)',
        ('test_images.py::test_augmented_images_are_windows',),
    ),
    Fault(
        'gains of weights that all clients share',
        'dfl_jax/initialisation.py',
        'jnp.where(jnp.all(leaf == leaf[:1]), leaf, by_client * leaf)',
        'by_client * leaf',
        ('test_initialisation.py::test_only_what_clients_draw_apart_is_scaled',),
    ),
    Fault(
        'sharpness-aware steps that descend first',
        'dfl_jax/training/local.py',
        'w + settings.sam_radius / norm',
        'w - settings.sam_radius / norm',
        ('test_gossip_sgd.py::test_three_rounds_equal_the_reference',),
    ),
    # --------------------------------------------------------- options, defaults, units, errors
    Fault(
        'a rounding that is asked for and not used',
        'dfl_jax/compression.py',
        'quantization(self.bits, self.rounding or rounding)',
        'quantization(self.bits, rounding)',
        ('test_compression.py',),
    ),
    Fault(
        "SPARK's default refresh",
        'dfl_jax/algorithms/spark.py',
        "projection_refresh: str = 'aggregator'",
        "projection_refresh: str = 'round'",
        ('test_algorithms.py',),
    ),
    Fault(
        "DFedSAM's rate without its decay",
        'dfl_jax/algorithms/dfedsam.py',
        'lr_decay=0.95',
        'lr_decay=1.0',
        ('test_algorithms.py',),
    ),
    Fault(
        'megabytes of 2^20 bytes',
        'dfl_jax/progress.py',
        "'mbytes_total': sum(by_client) / 8e6",
        "'mbytes_total': sum(by_client) / 2**23",
        ('test_simulate.py::test_bits_are_counted_exactly',),
    ),
    Fault(
        'all memory of the machine taken for free',
        'dfl_jax/host.py',
        "fields['MemAvailable']",
        "fields['MemTotal']",
        ('test_memory.py::test_what_is_available_is_not_all_that_there_is',),
    ),
    Fault(
        'a projection of the inputs that lengthens them',
        'dfl_jax/data/projection.py',
        'entries / np.float32(math.sqrt(dimensions))',
        'entries / np.float32(math.sqrt(features))',
        ('test_attack.py::test_a_projection_keeps_lengths_in_the_mean',),
    ),
    Fault(
        'an edge list whose nodes count from 1',
        'dfl_jax/topology/edge_list.py',
        'link = [int(f) for f in fields[:2]]',
        'link = [int(f) - 1 for f in fields[:2]]',
        ('test_topology.py::test_edge_list',),
    ),
    Fault(
        'a partition file that may name a sample twice',
        'dfl_jax/data/partitions.py',
        'if len(set(part)) < len(part):',
        'if len(set(part)) > len(part):',
        ('test_data.py::test_partition_file_errors',),
    ),
    Fault(
        'a checkpoint that is damaged and taken',
        'dfl_jax/checkpoint.py',
        'if digest != _digest(restored.state, record):',
        'if digest == "":',
        ('test_resume.py::test_a_damaged_checkpoint_is_set_aside',),
    ),
    Fault(
        'the bits of a sparse message without the places of its values',
        'dfl_jax/compression.py',
        'message.beside + positions',
        'message.beside',
        ('test_compression.py::test_the_bits_of_a_sparse_message',),
    ),
]
