"""Deliberate faults of wiring, streams, keys and inputs: an option that is not passed on, two
purposes with one stream, a key used twice, an input outside of what a resume compares.
"""

from tests.faults.faults import Fault

FLAG = 'test_wiring.py::test_two_values_of_a_flag_make_two_experiments'
SCHEDULE = 'test_wiring.py::test_the_schedule_follows_from_a_flag'
KEYS = 'test_streams.py::test_no_key_is_used_twice_in_two_rounds'
GENERATORS = 'test_streams.py::test_no_two_generators_begin_alike'
FILE = 'test_resume_inputs.py::test_a_file_that_changed_is_refused'
ARRAYS = 'test_resume_inputs.py::test_every_array_of_an_experiment_is_in_its_fingerprint'
SWEEP = 'test_wiring_commands.py::test_a_sweep_hands_on_all_that_its_runs_are'

WIRING = [
    # ---------------------------------------------------------------------- flags of a run
    Fault(
        'client sizes whose spread is always the default',
        'dfl_jax/experiment/run_settings.py',
        "    'lognormal_sigma': 'lognormal_sigma',\n",
        '',
        f'{FLAG}[lognormal_sigma]',
    ),
    Fault(
        'windows of a text that are always as long',
        'dfl_jax/experiment/datasets.py',
        'text_window=settings.text_window',
        'text_window=None',
        f'{FLAG}[text_window]',
    ),
    Fault(
        'a share of a table for the test that is not asked',
        'dfl_jax/data/sources.py',
        "'test_share': test_share",
        "'test_share': None",
        f'{FLAG}[test_share]',
    ),
    Fault(
        'a torus that has two dimensions whatever is asked',
        'dfl_jax/experiment/run_settings.py',
        "    'torus_dimensions': 'dimensions',\n",
        '',
        f'{FLAG}[torus_dimensions]',
    ),
    Fault(
        'graphs that are not rewired',
        'dfl_jax/experiment/table_rows.py',
        "{'assortativity': values['assortativity']}",
        "{'assortativity': None}",
        f'{FLAG}[assortativity]',
    ),
    Fault(
        'a barrier that a run never sets up',
        'dfl_jax/experiment/build.py',
        'Rules(barrier=time.barrier, ',
        'Rules(',
        f'{FLAG}[barrier]',
    ),
    Fault(
        'validation inputs that are not shifted as those of training',
        'dfl_jax/data/feature_shift.py',
        "        validation = shift_clients(validation, shift, seed, 'validation')\n",
        '        pass\n',
        'test_wiring.py::test_a_flag_changes_all_that_it_is_about_and_nothing_else',
    ),
    Fault(
        'validation samples that a run does not hand on',
        'dfl_jax/experiment/session.py',
        '                validation=built.validation,\n',
        '',
        'test_wiring_commands.py::test_a_run_hands_on_all_that_it_is',
    ),
    Fault(
        'an experiment of Python that leaves out what its method asks of the run',
        'dfl_jax/experiment/description.py',
        'cls.of_settings({**row.defaults, **flat}, given=flat)',
        'cls.of_settings(flat, given=flat)',
        'test_experiment.py::test_defaults_follow_from_the_algorithm',
    ),
    # --------------------------------------------------------------------- settings of methods
    Fault(
        'one epoch for the head, whatever is asked',
        'dfl_jax/algorithms/dfed_alt.py',
        'local_epochs=head_epochs)',
        'local_epochs=1)',
        'test_wiring_methods.py::test_every_setting_of_a_method_changes_its_program[dfed_alt]',
    ),
    Fault(
        'training whose options a method leaves behind',
        'dfl_jax/algorithms/dfed_alt.py',
        'train_body = local_training(model, training, gossip',
        "train_body = local_training(model, training.replace(supervision='ce'), gossip",
        'test_wiring_methods.py'
        '::test_local_training_has_all_of_its_settings_in_every_method[dfed_alt]',
    ),
    Fault(
        'fragments of which a flag does not decide the number',
        'dfl_jax/experiment/simulated_time.py',
        '**{name: settings[name] for name in of_events if name in settings},',
        "**{n: settings[n] for n in of_events if n in settings and n != 'recipients'},",
        f'{SCHEDULE}[events-recipients-1-2]',
    ),
    # ------------------------------------------------------------------------ without rounds
    Fault(
        'messages of events that are never lost',
        'dfl_jax/experiment/simulated_time.py',
        '        loss=experiment.graphs.link_dropout,\n',
        '',
        f'{SCHEDULE}[events-link_dropout-0-0.4]',
    ),
    Fault(
        'events whose work is that of a mean client',
        'dfl_jax/experiment/simulated_time.py',
        '(jnp.asarray(sizes))',
        '(jnp.full(len(sizes), int(sizes.mean())))',
        f'{SCHEDULE}[events-partition-iid-lognormal]',
    ),
    Fault(
        'clients without rounds that draw the same numbers',
        'dfl_jax/asynchronous/events.py',
        '[seed, STREAM, i]',
        '[seed, STREAM, 0]',
        f'{GENERATORS}[events]',
    ),
    Fault(
        'updates of a client that all have one key',
        'dfl_jax/asynchronous/state.py',
        'jax.random.fold_in(jax.random.wrap_key_data(state.keys[i]), updates)',
        'jax.random.wrap_key_data(state.keys[i])',
        f'{KEYS}[swift]',
    ),
    # ------------------------------------------------------------------------------- streams
    Fault(
        'validation drawn from the stream of the partition',
        'dfl_jax/experiment/datasets.py',
        "split_validation(parts, share, seeds['validation'])",
        "split_validation(parts, share, seeds['partition'])",
        'test_streams.py::test_what_follows_from_a_stream_and_what_does_not[rounds-validation]',
    ),
    Fault(
        'speeds and links of a world from one stream',
        'dfl_jax/timing/world.py',
        '_generator(seed, FIELDS.index(name))',
        '_generator(seed, 0)',
        f'{GENERATORS}[rounds]',
    ),
    Fault(
        'noise of validation inputs that is that of training',
        'dfl_jax/data/feature_shift.py',
        "shift_clients(validation, shift, seed, 'validation')",
        'shift_clients(validation, shift, seed)',
        f'{GENERATORS}[rounds]',
    ),
    Fault(
        'projected inputs from the stream of the subset',
        'dfl_jax/experiment/datasets.py',
        "settings.input_projection, seeds['projection'])",
        "settings.input_projection, seeds['subset'])",
        'test_streams.py::test_what_follows_from_a_stream_and_what_does_not[rounds-projection]',
    ),
    # ---------------------------------------------------------------------------------- keys
    Fault(
        'messages of all clients rounded by one key',
        'dfl_jax/exchange/exchange.py',
        'inputs = jax.random.split(key, len(round.sizes)), tree, around',
        'inputs = jnp.broadcast_to(key, (len(round.sizes),)), tree, around',
        f'{KEYS}[choco_sgd]',
    ),
    Fault(
        'Jacobians of all batches rounded by one key',
        'dfl_jax/algorithms/ntk_dfl.py',
        'keys = jax.random.split(k_codec, (len(graph.members), batches))',
        'keys = jax.numpy.broadcast_to(k_codec, (len(graph.members), batches))',
        f'{KEYS}[ntk_dfl]',
    ),
    Fault(
        'weights that grow again at the same random places in all layers',
        'dfl_jax/algorithms/dispfl.py',
        'keys = optax.tree.split_key_like(k_random, params)',
        'keys = jax.tree.map(lambda _: k_random, params)',
        f'{KEYS}[dispfl]',
    ),
    Fault(
        'crops of all steps by one key',
        'dfl_jax/training/local.py',
        'augmented(settings, k_crop, batch.x)',
        'augmented(settings, k_steps, batch.x)',
        f'{KEYS}[dpsgd]',
    ),
    Fault(
        'rounds of a run that share a key',
        'dfl_jax/simulate.py',
        'k_round = jax.random.fold_in(key, number)',
        'k_round = key',
        'test_streams.py::test_every_round_of_a_run_has_a_key_of_its_own',
    ),
    # --------------------------------------------------------------------------------- resume
    Fault(
        "clients' architectures of which a resume compares the names alone",
        'dfl_jax/experiment/fingerprint.py',
        'for a in (np.array([name]), c)]',
        'for a in (np.array([name]),)]',
        f'{FILE}[architectures]',
    ),
    Fault(
        'links of a world that a resume does not compare',
        'dfl_jax/experiment/fingerprint.py',
        'jax.tree.leaves(built.world))',
        'jax.tree.leaves(built.world)[:1])',
        f'{FILE}[uplinks]',
    ),
    Fault(
        'test labels that a resume does not compare',
        'dfl_jax/experiment/fingerprint.py',
        'dataset.test_x, dataset.test_y))',
        'dataset.test_x))',
        f'{FILE}[test labels]',
    ),
    Fault(
        'events of which a resume compares the first columns alone',
        'dfl_jax/experiment/fingerprint.py',
        'for a in graphs if a is not None]',
        'for a in graphs[:3]]',
        ARRAYS,
    ),
    # --------------------------------------------------------------------------------- sweeps
    Fault(
        'validation samples that a sweep does not hand on',
        'dfl_jax/cli/sweep/group.py',
        'validation=_padded([one.validation for one in experiments]),',
        'validation=None,',
        SWEEP,
    ),
    Fault(
        'a barrier that a sweep does not hand on',
        'dfl_jax/cli/sweep/group.py',
        '        rules=experiments[0].rules,\n',
        '',
        SWEEP,
    ),
    Fault(
        'runs of a sweep that share the key of the first',
        'dfl_jax/cli/sweep/group.py',
        'jnp.stack([one.key for one in experiments])',
        'jnp.stack([first.key for one in experiments])',
        SWEEP,
    ),
    Fault(
        'jobs of Slurm with one core each',
        'dfl_jax/cli/sweep/launchers/submitit.py',
        "'cpus_per_task': options.cores",
        "'cpus_per_task': 1",
        'test_wiring_commands.py::test_every_option_of_a_launcher_reaches_it',
    ),
    # ------------------------------------------------------------------------- other commands
    Fault(
        'a replay without the barrier that was asked for',
        'dfl_jax/cli/time/command.py',
        'replayed.seconds(world, FLAGS.barrier)',
        'replayed.seconds(world)',
        'test_wiring_commands.py::test_a_replay_is_of_what_its_flags_say',
    ),
    Fault(
        'a report whose target is always the default',
        'dfl_jax/cli/report/command.py',
        'write_report(source, out, FLAGS.target, FLAGS.overwrite)',
        'write_report(source, out, 0.85, FLAGS.overwrite)',
        'test_wiring_commands.py::test_the_report_is_of_what_its_flags_say',
    ),
    Fault(
        'missing runs of a table with progress bars that nobody wants',
        'dfl_jax/papers/tables/command.py',
        'FLAGS.data_dir, FLAGS.progress)',
        'FLAGS.data_dir, True)',
        'test_wiring_commands.py::test_a_table_is_what_its_flags_say',
    ),
    Fault(
        'searches of the attack that are always two',
        'dfl_jax/papers/reconstruct/scene.py',
        "'restarts': FLAGS.attack_restarts}",
        "'restarts': 2}",
        'test_wiring_commands.py::test_two_values_of_a_flag_make_two_attacks[attack_restarts]',
    ),
    Fault(
        'a step that is attacked as if it were not private',
        'dfl_jax/papers/reconstruct/gradient.py',
        '    if settings.dp_clip is None:',
        '    if True:',
        'test_gradient_inversion.py::test_every_sample_is_clipped',
    ),
]
