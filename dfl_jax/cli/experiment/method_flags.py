"""The flags that a method takes as arguments of its factory.

A flag whose default is None leaves the method at its published hyperparameter; a flag that a method
does not take is an error, never ignored.
"""

from absl import flags

ALGORITHM_FLAGS = {  # by argument
    # Of several methods
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
        'or lr * exp(-lr_decay * k) (ntk_dfl, ntk_fl and spark: a rate, e.g. 0.07).',
    ),
    'loss': flags.DEFINE_string('loss', None, 'cross_entropy (default) or mse (half the square).'),
    'mixing': flags.DEFINE_string(
        'mixing',
        None,
        'Averaging weights: size (default of ntk_dfl, spark and decavg), uniform (of the others) '
        'or metropolis.',
    ),
    'consensus': flags.DEFINE_string(
        'consensus',
        None,
        'Aggregated model: mean of the M models (default), weighted by size, or of dispfl the mean '
        'over the intersection of masks.',
    ),
    'init': flags.DEFINE_string(
        'init',
        None,
        'Initial weights: same (default), independent (default of decavg), or gain_corrected: '
        'independent times the --gain that averaging takes away.',
    ),
    'chunk': flags.DEFINE_integer(
        'chunk',
        None,
        'Aggregators or clients worked on at once (default: by the memory available).',
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
        'momentum', None, "Momentum in [0, 1): heavy-ball of sgd, Nesterov's of spark (spark: 0.9)."
    ),
    'weight_decay': flags.DEFINE_float('weight_decay', None, 'L2 decay (adamw: decoupled).'),
    'clip_norm': flags.DEFINE_float('clip_norm', None, 'Bound on the norm of the gradient.'),
    'sam_radius': flags.DEFINE_float(
        'sam_radius', None, 'rho of sharpness-aware minimisation (dfedsam: 0.01); 0 turns it off.'
    ),
    'sam_adaptive': flags.DEFINE_bool('sam_adaptive', None, 'Scale-invariant ascent (ASAM).'),
    'supervision': flags.DEFINE_string(
        'supervision',
        None,
        'Loss of the labels: ce, wsm (re-weighted softmax) or ace (dfml and its baselines: wsm; '
        'others: ce).',
    ),
    'augmentation': flags.DEFINE_string(
        'augmentation', None, 'Of training images: none (default) or standard (shift and mirror).'
    ),
    'proximal': flags.DEFINE_float(
        'fedprox_mu',
        None,
        'mu of mu/2 ||w - w_start||^2 in the loss (dec_fedprox: 0.5; others: 0).',
    ),
    'averaged': flags.DEFINE_string(
        'averaged',
        None,
        'Models that neighbours average: the trained ones (default), or the previous ones, to '
        'which each client adds its update (D-PSGD as first published, with --local_steps=1).',
    ),
    'gossip_steps': flags.DEFINE_integer(
        'gossip_steps', None, 'Averaging steps a round over the same graph (default 1).'
    ),
    'averaging_warmup': flags.DEFINE_integer(
        'warmup_rounds',
        None,
        'First rounds in which clients only average (default: none, or with --init=gain_corrected '
        'until they agree within a tenth of what they agree on).',
    ),
    'diagnostics': flags.DEFINE_bool(
        'diagnostics',
        None,
        'Report how far training and averaging move the models, and the angle between them.',
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
    'precision': flags.DEFINE_string(
        'ntk_precision',
        None,
        'Of the products of an NTK round: highest (default), high or default.',
    ),
    'evolution': flags.DEFINE_string('evolution', None, 'rkc (default), euler, or eigh with mse.'),
    'selection': flags.DEFINE_string(
        'timestep_selection', None, 'Loss that chooses t: of the network (default) or linearized.'
    ),
    'timesteps': flags.DEFINE_list(
        'ntk_timesteps',
        None,
        'Candidates for t, increasing (default 100,200,...,800; spark: 100,200,400,800).',
    ),
    'averaging': flags.DEFINE_bool(
        'ntk_averaging', None, 'Per-round averaging of weights (default true).'
    ),
    'jacobian_weights': flags.DEFINE_string(
        'ntk_jacobian_weights',
        None,
        'Where a neighbour takes its Jacobian: at the averaged weights (default), or at its own.',
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
        'Draw the matrix again for every aggregator and round (default), every round, or never.',
    ),
    'kernel_form': flags.DEFINE_string(
        'spark_kernel', None, 'Kernel over samples and outputs: full (default), or its trace.'
    ),
    'step_form': flags.DEFINE_string(
        'spark_step',
        None,
        'Step of the weights: projected (default), or exact, which sends residuals back.',
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
        "Soft labels come from the aggregator's model (default) or the neighbours' own.",
    ),
    'average_velocity': flags.DEFINE_bool(
        'spark_average_velocity', None, 'Average the velocities with the weights.'
    ),
    'judge': flags.DEFINE_string(
        'spark_judge', None, 'Loss that chooses t is against the labels (default) or the target.'
    ),
    # DFML and its baselines
    'mutual_epochs': flags.DEFINE_integer(
        'dfml_mutual_epochs', None, "K, passes over the aggregator's data (default 10)."
    ),
    'schedule': flags.DEFINE_string(
        'dfml_schedule',
        None,
        'Of alpha, the weight of the distillation: half_cycle (default), cycle, fixed, or annealed '
        '(ANL-KD).',
    ),
    'alpha': flags.DEFINE_float(
        'dfml_alpha', None, 'Largest alpha, in [0, 1] (default 0.9; dec_fml: 0.5, in all rounds).'
    ),
    'period': flags.DEFINE_integer('dfml_period', None, 'Rounds of the first cycle (default 10).'),
    'period_growth': flags.DEFINE_integer(
        'dfml_period_growth', None, 'Rounds by which every next cycle is longer (default 1).'
    ),
    'peak_updates': flags.DEFINE_integer(
        'dfml_peak_updates',
        None,
        'Rounds of a cycle, of the largest alpha, that renew the peak models (default 1, and '
        'clients over senders where fewer than half of the clients send).',
    ),
    'scheduled': flags.DEFINE_string(
        'dfml_scheduled',
        None,
        'Terms that alpha moves: both (default), supervision, distillation, or common.',
    ),
    'teachers': flags.DEFINE_string(
        'dfml_teachers', None, 'Teachers weigh as their size (default) or are equal.'
    ),
    'transfer': flags.DEFINE_string(
        'dfml_transfer', None, 'mutual (default), or vanilla: only the aggregator learns.'
    ),
    'weighted_samples': flags.DEFINE_bool(
        'dfml_weighted_samples', None, 'Weighted soft labels (WSL).'
    ),
    'temperature': flags.DEFINE_float(
        'dfml_temperature', None, 'Of the softmax of the distillation (default 1).'
    ),
    'server': flags.DEFINE_bool(
        'dec_fedavg_server', None, 'Centralized FedAvg: all clients go on with the average.'
    ),
    'held': flags.DEFINE_string(
        'partial_channels',
        None,
        'Channels that sub-models hold: first (dec_heterofl), rolled or sorted (dec_fedrolex), '
        'random (dec_fed_dropout).',
    ),
    'meme': flags.DEFINE_string(
        'fml_meme', None, 'Architecture of the memes of dec_fml (default: the median in size).'
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
