"""The flags that every run has, in groups; those of its methods are in `method_flags`."""

from absl import flags

from dfl_jax.cli.command import define_path

FLAGS = flags.FLAGS
GROUPS: dict[str, list[str]] = {}  # title -> names of flags
_BEFORE = set(FLAGS)  # absl's own


def _section(title: str) -> None:
    """Ends the group of flags before and begins the next."""
    if GROUPS:
        last, known = list(GROUPS)[-1], {name for group in GROUPS.values() for name in group}
        GROUPS[last] = [name for name in FLAGS if name not in known | _BEFORE]
    if title:
        GROUPS[title] = []


_section('run')
flags.DEFINE_string('algorithm', 'ntk_dfl', 'One of METHODS, or package.module:factory.')
flags.DEFINE_string(
    'model',
    'mlp',
    'Network: mlp (one hidden layer of 100), linear, cnn, cnn3, vgg16, gru (for texts); an '
    'architecture, e.g. cnn-32-64, resnet-64-128-256-512, vit-512-512 or efficientnet-b0; or '
    'package.module:factory.',
)
flags.DEFINE_list('hidden', None, 'Hidden widths of --model=mlp, e.g. 512,256,128 (default 100).')
flags.DEFINE_string(
    'initializer',
    None,
    'Distribution of the initial weights: he_normal (the default of most models), '
    'he_uniform, glorot_normal, glorot_uniform, lecun_normal, lecun_uniform or orthogonal.',
)
flags.DEFINE_integer('rounds', 10, 'Communication rounds T.', lower_bound=1)
flags.DEFINE_integer(
    'seed',
    0,
    'Seed of everything random: partition, graphs, initial weights and training.',
    lower_bound=0,
)

_section('data')
define_path(
    'dataset',
    'digits',
    'One of digits, synthetic, sonnets, mnist, fashion_mnist, cifar10, cifar100, so2sat, '
    'image_folder, leaf; a .npz file with train_x [n, ...], train_y [n] (whole numbers from '
    '0, or the targets of --task), test_x and test_y; a .csv or .parquet table, with '
    '--columns; a text, .txt; hf:NAME of Hugging Face, or hf:FOLDER; or '
    'package.module:factory (docs/data.md).',
    before='^(?:hf:)?',
)
flags.DEFINE_string(
    'task',
    'classification',
    'What the targets are: classification; regression (numbers [n] or [n, C], squared '
    'error); multi_label (0 or 1, [n, C]); next_token (whole numbers [n, L], for a model '
    'that returns [B, L, C]); or package.module:factory of a dfl_jax.tasks.Task. Gradient '
    'and asynchronous methods learn all of them; ntk_dfl and ntk_fl also regression, with '
    '--loss=mse, and any task but next_token, with --loss=task.',
)
define_path(
    'data_dir',
    None,
    'Folder of the data sets; missing files are downloaded into it (default: in the cache '
    'folder of the user).',
)
flags.DEFINE_integer(
    'train_samples', None, 'Use only so many training samples, drawn at random by --seed.'
)
flags.DEFINE_integer(
    'test_samples', None, 'Use only so many test samples, drawn at random by --seed.'
)
flags.DEFINE_integer(
    'image_size',
    None,
    'Rows and columns to which images of --dataset=image_folder (default 64) and hf: are resized.',
)
flags.DEFINE_list(
    'columns',
    None,
    'What the columns of a table are, e.g. target=price,client=shop: target (the column to '
    'predict; several joined by +), client (the user that a row belongs to, for '
    '--partition=natural), split (holds train and test), drop (not used); all others are '
    'features, and number and category say of which kind, where it does not show. For hf: '
    'input, target and client.',
)
flags.DEFINE_float(
    'test_share',
    None,
    'Share of a table, a text or a data set of hf: that becomes the test set, if the data '
    'have no test set of their own (default 0.2).',
)
flags.DEFINE_integer('text_window', None, 'Characters in each sample of a text (default 40).')
flags.DEFINE_integer('clients', 30, 'Number of clients M.', lower_bound=1)
flags.DEFINE_string(
    'partition',
    'dirichlet',
    'One of iid, balanced, dirichlet, dirichlet_split, zipf, lognormal, shards, natural (each '
    'client is one user of the data set, drawn at random where there are more users than clients) '
    'or writer (each client is a group of its users).',
)
flags.DEFINE_float('alpha', 0.1, 'Dirichlet concentration; smaller is more heterogeneous.')
flags.DEFINE_float(
    'zipf_exponent',
    1.8,
    'For --partition=zipf: exponent of the distribution of the shares of a class, above 1; a '
    'smaller one has larger shares.',
)
flags.DEFINE_float(
    'lognormal_sigma',
    1.0,
    'For --partition=lognormal: standard deviation of the logarithm of client sizes.',
)
flags.DEFINE_integer(
    'shards_per_client',
    2,
    'For --partition=shards: how many shards of the label-sorted samples each client gets.',
)
flags.DEFINE_integer(
    'samples_per_client',
    None,
    'For --partition=balanced: samples of each client (default: as many as the scarcest '
    'class allows).',
)
flags.DEFINE_bool(
    'partition_overlap',
    False,
    'For --partition=dirichlet: each client draws from the whole training set, so that '
    'clients may share samples.',
)
define_path(
    'partition_file',
    None,
    'JSON file that replaces --partition: for each client a list of indices of its training '
    'samples, none twice in a list.',
)
flags.DEFINE_float(
    'validation_share',
    None,
    'Share of its samples that each client keeps from training, and on which its own model is then '
    'evaluated, as local_accuracy_mean in metrics.jsonl (default 0.2 for dfml and its baselines, 0 '
    'for others). Not for ntk_fl, whose clients have no models of their own.',
)
flags.DEFINE_integer(
    'input_projection',
    None,
    'Project the inputs to this number of dimensions by one random matrix that all clients share.',
    lower_bound=1,
)
flags.DEFINE_string(
    'feature_shift',
    None,
    'Change the inputs of each client in its own way: quarter_turns of images, '
    'angle:DEGREES, colour:STRENGTH, or noise:STRENGTH for any inputs (docs/data.md).',
)
flags.DEFINE_bool(
    'plot_partition', False, 'Draw which client has which samples into partition.png.'
)

_section('network')
flags.DEFINE_string(
    'topology',
    'regular',
    'A new graph in every round, its clients relabelled, unless --static_topology. One of regular, '
    'ring, line, complete, star, erdos_renyi, barabasi_albert, watts_strogatz, torus, '
    'configuration, chung_lu, clustered, two_group, hypercube, '
    'k_random (each client hears --degree others, who need not hear it), epidemic (each '
    'client is heard by --degree others, and hears any number), directed_ring, exponential '
    '(client i hears i - 2^j for all 2^j < M); one_peer_exponential (one of the links of '
    'exponential in each round) and base_graph (at most --degree neighbours in a round), '
    'which have mixing weights of their own and average exactly in a few rounds; '
    'one_peer_equi (client i hears i - u, with u drawn anew every round), as fast for any '
    'number of clients; or edge_list, directed_edge_list or matrix, with --topology_file '
    '(docs/topologies.md).',
)
flags.DEFINE_integer(
    'degree', 5, 'Neighbours of a client, or their mean number where the family is random.'
)
flags.DEFINE_float(
    'link_probability',
    None,
    'For --topology=erdos_renyi, in place of --degree: probability of a link.',
)
flags.DEFINE_float(
    'degree_exponent',
    2.5,
    'For --topology=configuration and chung_lu: exponent of the power law of degrees; a '
    'smaller one has larger hubs.',
)
flags.DEFINE_float(
    'rewiring',
    0.1,
    'For --topology=watts_strogatz: probability that a link of the ring lattice goes to a '
    'random client instead.',
)
flags.DEFINE_integer('torus_dimensions', 2, 'For --topology=torus: its dimensions.', lower_bound=1)
flags.DEFINE_float(
    'assortativity',
    None,
    'Rewire every graph until the degrees at both ends of a link have this correlation; all '
    'degrees are kept.',
)
flags.DEFINE_bool(
    'static_topology', False, 'Use one graph for all rounds instead of a new one in each round.'
)
define_path(
    'topology_file',
    None,
    'For --topology=edge_list, as networkx.write_edgelist writes it: two client numbers in '
    'each line, and optionally the weight that they give each other. For '
    '--topology=directed_edge_list the second client hears the first. For --topology=matrix, '
    'as numpy.save writes it: mixing weights [M, M] whose rows sum to one, or [T, M, M] for '
    'successive rounds.',
)
flags.DEFINE_float('link_dropout', 0.0, 'Probability that a link fails in a round.')
flags.DEFINE_bool(
    'directed_dropout',
    False,
    'With --link_dropout: each direction of a link fails by itself, instead of both together.',
)
flags.DEFINE_float(
    'link_dropout_directed',
    0.0,
    'Probability that one direction of a link fails in a round, each by itself; beside '
    '--link_dropout, of those links that it leaves.',
)
flags.DEFINE_float('client_dropout', 0.0, 'Probability that a client sits out a round.')
flags.DEFINE_float(
    'receive_dropout',
    0.0,
    'Probability that a client receives nothing in a round; others still receive from it.',
)
flags.DEFINE_float(
    'isolate_dropout',
    0.0,
    'Probability that a client neither sends nor receives in a round, and trains on its own.',
)

_section('simulated time')
define_path(
    'world',
    None,
    'Network and device profile from which simulated_seconds are computed: settings such as '
    'speed=1e10,uplink=5.6e6,latency=0.05 (operations a second, bits a second, seconds), '
    'each a number, lognormal:MEDIAN:SIGMA or two:SLOW:FAST:SHARE, and '
    'online=sine:PERIOD:SHARE; or devices (500 made-up ones); or a .csv or .npz file '
    '(docs/time.md).',
    before=r'(?:^|;)\s*',
)
flags.DEFINE_bool(
    'barrier', False, 'With --world: all clients wait for the last one in each round.'
)
flags.DEFINE_float(
    'round_seconds',
    None,
    'With a --world that has online times: round r begins after r times so many seconds, and '
    'clients that are offline then sit it out (default: the others wait for them). '
    'Asynchronous methods are evaluated at intervals of so many simulated seconds, --rounds '
    'times.',
)

_section('clients of different architectures')
flags.DEFINE_list(
    'architectures',
    None,
    'Networks of dfml and its baselines, assigned to the clients in turn: a mode of the '
    'paper (h0, h1_cnn, h1_resnet, h1_vit, h2_cnn, h2_efficientnet, h2_mixed) or names like '
    'cnn-32-64, resnet-64-128-256-512, vit-512-512, efficientnet-b0 (default: h2_cnn, or '
    'what the baseline can train).',
)
flags.DEFINE_list(
    'architecture_ratios',
    None,
    'Ratios of the numbers of clients with each of --architectures, e.g. 2,1,1 (default: equal).',
)
define_path(
    'architecture_file',
    None,
    'File with the name of one architecture in each line, in the order of the clients.',
)
flags.DEFINE_float('dfml_width', 1.0, 'Factor on every number of channels of --architectures.')
flags.DEFINE_integer(
    'senders', None, 'Clients that send to an aggregator in a round (default: half of the clients).'
)
flags.DEFINE_integer(
    'aggregators',
    None,
    'Aggregators in a round, to which the senders are assigned (default 1; def_kt: one for '
    'each sender).',
)
flags.DEFINE_enum(
    'aggregator',
    'uniform',
    ('uniform', 'walk', 'fixed'),
    'How the aggregator is chosen: drawn in each round from all clients (uniform), drawn '
    'from those that the last aggregator hears (walk), or always client 0 (fixed).',
)

_section('gain of --init=gain_corrected')
flags.DEFINE_enum(
    'gain',
    'graph',
    ('graph', 'family', 'degrees', 'size', 'push_sum'),
    'What clients know to compute their gain from: the whole graph (graph: 1 / '
    '||v_steady||); --topology and the number of clients n (family); n and the degrees of '
    '--gain_polled clients (degrees); n alone (size: n**gain_exponent); or n as each client '
    'estimates it by gossip (push_sum).',
)
flags.DEFINE_float(
    'gain_size_factor',
    1.0,
    'For --gain=family, degrees and size: the assumed number of clients over the true one.',
)
flags.DEFINE_float('gain_exponent', 0.5, 'For --gain=size and push_sum: exponent of n.')
flags.DEFINE_integer(
    'gain_polled', 20, 'For --gain=degrees: number of clients whose degrees are known.'
)
flags.DEFINE_integer('gain_rounds', 50, 'For --gain=push_sum: rounds of gossip.', lower_bound=1)

_section('evaluation and output')
flags.DEFINE_integer('eval_every', 1, 'Rounds between evaluations.', lower_bound=1)
flags.DEFINE_integer(
    'client_eval_samples',
    None,
    "Number of test samples on which each client's own model is evaluated, drawn at random by "
    '--seed, the same share of every class (default: all); the consensus model sees all.',
    lower_bound=1,
)
define_path(
    'out',
    None,
    'Folder of the results (default: runs/ALGORITHM-DATASET-TIME).',
)
flags.DEFINE_bool(
    'resume',
    False,
    'Continue the run in --out from its last checkpoint, with the settings that it has; a '
    'larger --rounds extends it.',
)
flags.DEFINE_bool(
    'allow_imports',
    False,
    'Let --resume and select import the algorithm, model, task or loader that config.json '
    'names as package.module:factory.',
)
flags.DEFINE_bool('checkpoint', True, 'Save a checkpoint at every evaluation.')
flags.DEFINE_string(
    'devices',
    'auto',
    'Devices over which the clients are spread: a number; all, those that JAX sees; or auto: '
    'one of the accelerators, or on a CPU as many cores as make a round faster and memory '
    'allows.',
)
flags.DEFINE_string(
    'distributed',
    None,
    'Run as one of several processes that use all of their devices: auto (Slurm, a TPU pod), '
    'or HOST:PORT,i,n for process i of n.',
)
flags.DEFINE_bool('progress', True, 'Show a progress bar.')
flags.DEFINE_enum(
    'log',
    'text',
    ['text', 'json'],
    'Format of the standard output: text, or json, which writes one line of JSON at the '
    'start, for every evaluation and at the end, and the text to standard error.',
)
flags.DEFINE_bool(
    'tensorboard',
    False,
    'Write event files for TensorBoard into the run directory.',
)
flags.DEFINE_bool(
    'wandb',
    False,
    'Log every evaluation to Weights & Biases; WANDB_MODE=offline works without an account.',
)
flags.DEFINE_string(
    'wandb_project', None, 'Project of --wandb (default $WANDB_PROJECT, else dfl_jax).'
)
define_path(
    'compilation_cache', None, "Folder of XLA's persistent compilation cache; off uses none."
)

_section('')

# Where and how a run is watched; they may differ between a run and its continuation
NOT_SETTINGS = (
    'out',
    'resume',
    'allow_imports',
    'progress',
    'log',
    'devices',
    'distributed',
    'tensorboard',
    'wandb',
    'wandb_project',
    'plot_partition',
    'compilation_cache',
    'checkpoint',
)
