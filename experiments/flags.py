"""The flags of `python -m experiments.run`.

Nothing heavy is imported here, so that `--help` is quick. A flag of an algorithm whose default is
None leaves the method at its published hyperparameter; a flag that a method does not take is an
error, never ignored.
"""

from absl import flags

# What to run
flags.DEFINE_string(
    'algorithm',
    'ntk_dfl',
    'ntk_dfl, spark, dpsgd, dfedavg, dfedavgm, dfedsam, dispfl, decavg, the centralized ntk_fl, '
    'or package.module:factory. Its flags default to its published hyperparameters.',
)
flags.DEFINE_string(
    'model', 'mlp', 'Network: mlp (one hidden layer of 100), cnn, or package.module:factory.'
)
flags.DEFINE_list('hidden', None, 'Hidden widths of --model=mlp, e.g. 512,256,128 (default 100).')
flags.DEFINE_integer('rounds', 10, 'Communication rounds T.', lower_bound=1)
flags.DEFINE_integer('seed', 0, 'One seed for partition, graphs, initialisation and training.')

# Data
flags.DEFINE_string(
    'dataset', 'digits', 'digits, synthetic, mnist, fashion_mnist, cifar10, cifar100, or a .npz.'
)
flags.DEFINE_string(
    'data_dir', None, 'Folder with the data sets; missing files are downloaded into it.'
)
flags.DEFINE_integer('train_samples', None, 'Use a seeded random subset of the training set.')
flags.DEFINE_integer('clients', 30, 'Number of clients M.', lower_bound=1)
flags.DEFINE_string(
    'partition', 'dirichlet', 'iid, dirichlet, dirichlet_split, zipf, writer or shards.'
)
flags.DEFINE_float('alpha', 0.1, 'Dirichlet concentration; smaller is more heterogeneous.')
flags.DEFINE_float('zipf_exponent', 1.0, 'Exponent of --partition=zipf.')
flags.DEFINE_integer('shards_per_client', 2, 'Label-sorted shards a client of --partition=shards.')
flags.DEFINE_bool('partition_overlap', False, 'Each client draws anew from the whole training set.')
flags.DEFINE_string(
    'partition_file', None, 'JSON list of M lists of training indices; replaces --partition.'
)
flags.DEFINE_integer(
    'input_projection',
    None,
    'Project the inputs to so many dimensions by one random matrix that all clients share.',
    lower_bound=1,
)
flags.DEFINE_bool('plot_partition', False, 'Draw who holds what into partition.png.')

# Network
flags.DEFINE_string(
    'topology',
    'regular',
    'regular, ring, line, complete, star, erdos_renyi, barabasi_albert, watts_strogatz, torus, '
    'clustered, two_group, or edge_list with --topology_file.',
)
flags.DEFINE_integer('degree', 5, 'Neighbours of a client (mean, where the family is random).')
flags.DEFINE_bool('static_topology', False, 'One graph for all rounds, not a new one each round.')
flags.DEFINE_string('topology_file', None, 'Edge list: two client numbers a line.')
flags.DEFINE_float('link_dropout', 0.0, 'Probability that a link fails in a round.')
flags.DEFINE_float('client_dropout', 0.0, 'Probability that a client sits out a round.')

# Evaluation and output
flags.DEFINE_integer('eval_every', 1, 'Rounds between evaluations.', lower_bound=1)
flags.DEFINE_integer(
    'client_eval_samples',
    None,
    'Test samples that judge the single clients (default all).',
    lower_bound=1,
)
flags.DEFINE_string('out', None, 'Run directory (default runs/ALGORITHM-DATASET-TIME).')
flags.DEFINE_bool('resume', False, 'Continue the run in --out from its last checkpoint.')
flags.DEFINE_bool('checkpoint', True, 'Save a checkpoint at every evaluation.')
flags.DEFINE_bool('progress', True, 'Show a progress bar.')
flags.DEFINE_string(
    'compilation_cache', None, "Folder of XLA's persistent compilation cache, or 'off'."
)

# Shared by algorithms; None is the method's own default
ALGORITHM_FLAGS = {
    'lr': flags.DEFINE_float(
        'lr',
        None,
        'Learning rate of the first round (dpsgd, dfedavg, dispfl: 0.1; decavg: 0.001; others: '
        '0.01).',
        lower_bound=0.0,
    ),
    'lr_decay': flags.DEFINE_float(
        'lr_decay',
        None,
        'Decay a round: round k uses lr * lr_decay**k (gradient methods: a factor, e.g. 0.998), '
        'or lr * exp(-lr_decay * k) (ntk_dfl and ntk_fl: a rate, e.g. 0.07).',
    ),
    'loss': flags.DEFINE_string('loss', None, 'cross_entropy (default) or mse (half the square).'),
    'mixing': flags.DEFINE_string(
        'mixing', None, 'Averaging weights: size, uniform or metropolis.'
    ),
    'consensus': flags.DEFINE_string(
        'consensus',
        None,
        'Aggregated model: mean of the M models (default), weighted by size, or of dispfl the mean '
        'over the intersection of masks.',
    ),
    'init': flags.DEFINE_string('init', None, 'Initial weights: same (default) or independent.'),
    'chunk': flags.DEFINE_integer(
        'chunk',
        None,
        'Hubs or clients worked on at once (default: by the memory available).',
        lower_bound=1,
    ),
    # Gradient methods
    'local_epochs': flags.DEFINE_integer(
        'local_epochs', None, 'Passes over its data that a client makes in a round.'
    ),
    'local_steps': flags.DEFINE_integer(
        'local_steps', None, 'Minibatches of a round, in place of --local_epochs.'
    ),
    'batch_size': flags.DEFINE_integer(
        'batch_size', None, 'Minibatch; a client that holds less trains on all it has.'
    ),
    'optimizer': flags.DEFINE_string('optimizer', None, 'sgd (default) or adamw.'),
    'momentum': flags.DEFINE_float(
        'momentum', None, "Heavy-ball momentum of sgd, in [0, 1); spark: Nesterov's (default 0.9)."
    ),
    'weight_decay': flags.DEFINE_float('weight_decay', None, 'L2 decay (adamw: decoupled).'),
    'clip_norm': flags.DEFINE_float('clip_norm', None, 'Bound on the norm of the gradient.'),
    'sam_radius': flags.DEFINE_float(
        'sam_radius', None, 'rho of sharpness-aware minimisation (dfedsam: 0.01); 0 turns it off.'
    ),
    'sam_adaptive': flags.DEFINE_bool('sam_adaptive', None, 'Scale-invariant ascent (ASAM).'),
    'averaged': flags.DEFINE_string(
        'averaged',
        None,
        'Models that neighbours average: the trained ones (default), or the previous ones, to '
        'which each client adds its update (D-PSGD as first published, with --local_steps=1).',
    ),
    'gossip_steps': flags.DEFINE_integer(
        'gossip_steps', None, 'Averaging steps a round over the same graph (default 1).'
    ),
    'sparsity': flags.DEFINE_float(
        'weight_sparsity',
        None,
        'Set this share of the exchanged weights to zero, the smallest of every tensor.',
    ),
    'bits': flags.DEFINE_integer(
        'weight_bits', None, 'Quantize the exchanged weights to so many bits (default: floats).'
    ),
    'rounding': flags.DEFINE_string(
        'weight_rounding', None, 'Of --weight_bits: stochastic (default) or nearest.'
    ),
    # NTK methods
    'kernel': flags.DEFINE_string(
        'kernel', None, 'auto (default), structured, output_scan or nt (neural-tangents).'
    ),
    'evolution': flags.DEFINE_string('evolution', None, 'rkc (default), euler, or eigh with mse.'),
    'selection': flags.DEFINE_string(
        'timestep_selection', None, 'Loss that chooses t: of the network (default) or linearized.'
    ),
    'timesteps': flags.DEFINE_list(
        'ntk_timesteps', None, 'Candidates for t, increasing (default 100,200,...,800).'
    ),
    'averaging': flags.DEFINE_bool(
        'ntk_averaging', None, 'Per-round averaging of weights (default true).'
    ),
    'jacobian_weights': flags.DEFINE_string(
        'ntk_jacobian_weights',
        None,
        'Where a neighbour takes its Jacobian: at the averaged weights of the hub (default), or at '
        'its own.',
    ),
    'batches': flags.DEFINE_integer(
        'ntk_batches',
        None,
        'Jacobian batching: deal the data into m1 parts, an update for each (default 1).',
        lower_bound=1,
    ),
    'subsampling': flags.DEFINE_integer(
        'ntk_subsampling',
        None,
        'A client draws 1/m2 of its data each round (default 1: all).',
        lower_bound=1,
    ),
    'jacobian_sparsity': flags.DEFINE_float(
        'ntk_jacobian_sparsity',
        None,
        'Set this share of the sent Jacobian entries to zero, the smallest of every tensor.',
    ),
    'jacobian_bits': flags.DEFINE_integer(
        'ntk_jacobian_bits', None, 'Quantize the sent Jacobian to so many bits (default: floats).'
    ),
    'jacobian_rounding': flags.DEFINE_string(
        'ntk_jacobian_rounding', None, 'Of --ntk_jacobian_bits: nearest (default) or stochastic.'
    ),
    'by_cluster': flags.DEFINE_bool(
        'ntk_by_cluster',
        None,
        'With --topology=clustered: one update a cluster, shared by its clients (default true '
        'there).',
    ),
    'cohort': flags.DEFINE_integer(
        'ntk_fl_cohort', None, 'Clients that the server of ntk_fl hears in a round (default 5).'
    ),
    # SPARK
    'projection': flags.DEFINE_string(
        'spark_projection',
        None,
        'Random matrix that shrinks Jacobians: low_rank (default), sparse_sign, khatri_rao, '
        "hadamard, gaussian (the paper's; slow), or none.",
    ),
    'projection_dim': flags.DEFINE_integer(
        'spark_projection_dim', None, 'k, the numbers of a projected row (default 1000).'
    ),
    'projection_refresh': flags.DEFINE_string(
        'spark_projection_refresh',
        None,
        'Draw the matrix again for every hub and round (hub, default), every round, or never.',
    ),
    'kernel_form': flags.DEFINE_string(
        'spark_kernel', None, 'Kernel over samples and outputs: full (default), or its trace.'
    ),
    'step_form': flags.DEFINE_string(
        'spark_step',
        None,
        'Step of the weights: projected (default), or exact, for which hubs send residuals back.',
    ),
    'exchange': flags.DEFINE_string(
        'spark_exchange', None, 'Numbers of a sent Jacobian: float32 (default), float16 or int8.'
    ),
    'sampling': flags.DEFINE_float(
        'spark_sampling', None, 'Share of its data that a client draws each round (default 1).'
    ),
    'rounds': flags.DEFINE_integer(
        'spark_schedule_rounds', None, 'Rounds R of the distillation schedule (default: --rounds).'
    ),
    'warmup': flags.DEFINE_integer(
        'spark_warmup', None, 'R_warm, rounds on labels alone (default: a sixth of them).'
    ),
    'alpha_init': flags.DEFINE_float(
        'spark_alpha_init', None, 'Weight of the labels after the warm-up (default 1).'
    ),
    'alpha_final': flags.DEFINE_float(
        'spark_alpha_final', None, 'Weight of the labels at the end (default 0.1; 1: labels alone).'
    ),
    'tau_init': flags.DEFINE_float(
        'spark_tau_init', None, 'Temperature after the warm-up (default 1).'
    ),
    'tau_final': flags.DEFINE_float('spark_tau_final', None, 'Temperature at the end (default 1).'),
    'logits': flags.DEFINE_string(
        'spark_logits',
        None,
        "Soft labels come from the hub's model (default) or the neighbours' own.",
    ),
    'average_velocity': flags.DEFINE_bool(
        'spark_average_velocity', None, 'Average the velocities with the weights.'
    ),
    'judge': flags.DEFINE_string(
        'spark_judge', None, 'Loss that chooses t is against the labels (default) or the target.'
    ),
    # DisPFL
    'density': flags.DEFINE_float(
        'dispfl_density', None, 'Share of the weights that a mask keeps, in (0, 1] (default 0.5).'
    ),
    'prune_rate': flags.DEFINE_float(
        'dispfl_prune_rate', None, 'Share of a mask replaced after the first round (default 0.5).'
    ),
    'anneal_rounds': flags.DEFINE_integer(
        'dispfl_anneal_rounds', None, 'Rounds until nothing is replaced (default: --rounds).'
    ),
    'regrow': flags.DEFINE_string(
        'dispfl_regrow', None, 'What grows back: by gradient (default) or random.'
    ),
    'initial_masks': flags.DEFINE_string(
        'dispfl_initial_masks', None, 'First masks: same (default) or independent.'
    ),
}

# Where and how a run is watched; they may differ between a run and its continuation
NOT_SETTINGS = ('out', 'resume', 'progress', 'plot_partition', 'compilation_cache', 'checkpoint')
