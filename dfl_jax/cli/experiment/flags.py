"""The flags that every run has, in groups; those of its methods are in `method_flags`."""

from absl import flags

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
    'Network: mlp (one hidden layer of 100), linear, cnn, cnn3, vgg16, gru (of texts); an '
    'architecture, e.g. cnn-32-64, resnet-64-128-256-512, vit-512-512 or efficientnet-b0; or '
    'package.module:factory.',
)
flags.DEFINE_list('hidden', None, 'Hidden widths of --model=mlp, e.g. 512,256,128 (default 100).')
flags.DEFINE_string(
    'initializer',
    None,
    "Distribution of the initial weights: he_normal (most models' own), he_uniform, glorot_normal, "
    'glorot_uniform, lecun_normal, lecun_uniform or orthogonal.',
)
flags.DEFINE_integer('rounds', 10, 'Communication rounds T.', lower_bound=1)
flags.DEFINE_integer(
    'seed', 0, 'One seed for partition, graphs, initialisation and training.', lower_bound=0
)

_section('data')
flags.DEFINE_string(
    'dataset',
    'digits',
    'One of digits, synthetic, sonnets, mnist, fashion_mnist, cifar10, cifar100, so2sat, '
    'image_folder, leaf; a .npz of train_x [n, ...], train_y [n] (whole numbers from 0, or what '
    '--task takes), test_x and test_y; a table, .csv or .parquet, with --columns; a text, .txt; '
    'hf:NAME of Hugging Face, or hf:FOLDER; or package.module:factory (docs/data.md).',
)
flags.DEFINE_string(
    'task',
    'classification',
    'What the targets of a file are: classification; regression (numbers [n] or [n, C], squared '
    'error); multi_label (0 or 1, [n, C]); next_token (whole numbers [n, L], of a model that '
    'returns [B, L, C]); or package.module:factory of a dfl_jax.tasks.Task. All of them with '
    'gradient methods; regression also with ntk_dfl and ntk_fl and --loss=mse.',
)
flags.DEFINE_string(
    'data_dir',
    None,
    'Folder with the data sets; missing files are downloaded into it (default: in the cache of the '
    'user).',
)
flags.DEFINE_integer('train_samples', None, 'Use a seeded random subset of the training set.')
flags.DEFINE_integer('test_samples', None, 'Use a seeded random subset of the test set.')
flags.DEFINE_integer(
    'image_size',
    None,
    'Rows and columns of the images of --dataset=image_folder (default 64) and hf:.',
)
flags.DEFINE_list(
    'columns',
    None,
    'What the columns of a table are, e.g. target=price,client=shop: target (several joined by +), '
    'client (whose sample it is, for --partition=natural), split (holds train and test), drop (not '
    'used); all others are features. Of hf: input, target and client.',
)
flags.DEFINE_float(
    'test_share',
    None,
    'Share of a table, a text or a data set of hf: that is the test set, where the data do not say '
    'what is (default 0.2).',
)
flags.DEFINE_integer('text_window', None, 'Characters of a sample of a text (default 40).')
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
    'zipf_exponent', 1.8, 'Exponent of the sizes of clients of --partition=zipf, above 1.'
)
flags.DEFINE_float(
    'lognormal_sigma', 1.0, 'Sigma of the sizes of clients of --partition=lognormal.'
)
flags.DEFINE_integer('shards_per_client', 2, 'Label-sorted shards a client of --partition=shards.')
flags.DEFINE_integer(
    'samples_per_client',
    None,
    'Samples a client of --partition=balanced; default, as many as the scarcest class allows.',
)
flags.DEFINE_bool('partition_overlap', False, 'Each client draws anew from the whole training set.')
flags.DEFINE_string(
    'partition_file',
    None,
    'JSON list of M lists of training indices, no index twice in a list; replaces --partition.',
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
    'Project the inputs to so many dimensions by one random matrix that all clients share.',
    lower_bound=1,
)
flags.DEFINE_string(
    'feature_shift',
    None,
    'Inputs that look different at each client: quarter_turns of images, angle:DEGREES, '
    'colour:STRENGTH, or noise:STRENGTH of any inputs (docs/data.md).',
)
flags.DEFINE_bool('plot_partition', False, 'Draw who holds what into partition.png.')

_section('network')
flags.DEFINE_string(
    'topology',
    'regular',
    'One of regular, ring, line, complete, star, erdos_renyi, barabasi_albert, watts_strogatz, '
    'torus, configuration, chung_lu, clustered, two_group, hypercube, k_random (each client hears '
    '--degree others, who need not hear it), epidemic (--degree others hear each client, and it '
    'any number), directed_ring, exponential (client i hears i - 2^j for all 2^j < M), '
    'one_peer_exponential (one of these a round) and base_graph (at most --degree neighbours a '
    'round), which have weights and average exactly in a few rounds, one_peer_equi (client i hears '
    'i - u, u drawn anew every round), as fast for any number of clients; or edge_list or matrix, '
    'with --topology_file.',
)
flags.DEFINE_integer('degree', 5, 'Neighbours of a client (mean, where the family is random).')
flags.DEFINE_float(
    'link_probability', None, 'Of --topology=erdos_renyi, in place of --degree: p of a link.'
)
flags.DEFINE_float(
    'degree_exponent',
    2.5,
    'Exponent of the power law of degrees of --topology=configuration and chung_lu; a smaller one '
    'has larger hubs.',
)
flags.DEFINE_float(
    'rewiring',
    0.1,
    'Of --topology=watts_strogatz: probability that a link of the ring lattice goes to a random '
    'client instead.',
)
flags.DEFINE_integer('torus_dimensions', 2, 'Dimensions of --topology=torus.', lower_bound=1)
flags.DEFINE_float(
    'assortativity',
    None,
    'Rewire every graph to this correlation of degrees over links, keeping all degrees.',
)
flags.DEFINE_bool('static_topology', False, 'One graph for all rounds, not a new one each round.')
flags.DEFINE_string(
    'topology_file',
    None,
    'Of --topology=edge_list, as networkx.write_edgelist writes it: two client numbers a line, and '
    'perhaps the weight that they give each other. Of --topology=matrix, as numpy.save writes it: '
    'mixing weights [M, M], rows sum to one, or [T, M, M] of successive rounds.',
)
flags.DEFINE_float('link_dropout', 0.0, 'Probability that a link fails in a round.')
flags.DEFINE_bool(
    'directed_dropout',
    False,
    'With --link_dropout: each direction of a link fails by itself, instead of both together.',
)
flags.DEFINE_float('client_dropout', 0.0, 'Probability that a client sits out a round.')
flags.DEFINE_float(
    'receive_dropout',
    0.0,
    'Probability that a client receives nothing in a round; others still receive from it.',
)

_section('simulated time')
flags.DEFINE_string(
    'world',
    None,
    'Network and device profile, by which simulated_seconds are counted: settings such '
    'as speed=1e10,uplink=5.6e6,latency=0.05 (operations and bits a second, seconds), each a '
    'number, lognormal:MEDIAN:SIGMA or two:SLOW:FAST:SHARE, and online=sine:PERIOD:SHARE; '
    'devices (500 made-up ones); or a .csv or .npz (docs/time.md).',
)
flags.DEFINE_bool('barrier', False, 'In the --world: all wait for the last client of each round.')
flags.DEFINE_float(
    'round_seconds',
    None,
    'In a --world with online times: round r begins at r times so many seconds, and who is offline '
    'then sits it out (default: others wait). Asynchronous methods are evaluated every so many '
    'simulated seconds, --rounds times.',
)

_section('clients of different architectures')
flags.DEFINE_list(
    'architectures',
    None,
    'Networks of dfml and its baselines, given to the clients in turn: a mode of the paper (h0, '
    'h1_cnn, h1_resnet, h1_vit, h2_cnn, h2_efficientnet, h2_mixed) or names like cnn-32-64, '
    'resnet-64-128-256-512, vit-512-512, efficientnet-b0 (default: h2_cnn, or what the baseline '
    'can train).',
)
flags.DEFINE_list(
    'architecture_ratios', None, 'Ratios of --architectures, e.g. 2,1,1 (default even).'
)
flags.DEFINE_string('architecture_file', None, 'One architecture a line, client by client.')
flags.DEFINE_float('dfml_width', 1.0, 'Factor on every channel count of --architectures.')
flags.DEFINE_integer(
    'senders', None, 'Clients that send to an aggregator in a round (default half of them).'
)
flags.DEFINE_integer(
    'aggregators',
    None,
    'Aggregators a round, to which senders are assigned (default 1; def_kt: one each).',
)
flags.DEFINE_enum(
    'aggregator',
    'uniform',
    ('uniform', 'walk', 'fixed'),
    'Drawn each round from all clients, from those that the last one hears, or always client 0.',
)

_section('gain of --init=gain_corrected')
flags.DEFINE_enum(
    'gain',
    'graph',
    ('graph', 'family', 'degrees', 'size', 'push_sum'),
    'How clients know their gain: from the whole graph (1 / ||v_steady||); from --topology and the '
    'number of clients n; from n and the degrees of --gain_polled clients; from n alone, '
    'n**gain_exponent; or from n as each estimates it by gossip (push-sum).',
)
flags.DEFINE_float(
    'gain_size_factor', 1.0, 'Estimated over true n, of --gain=family, degrees and size.'
)
flags.DEFINE_float('gain_exponent', 0.5, 'Of --gain=size and push_sum.')
flags.DEFINE_integer('gain_polled', 20, 'Clients whose degrees --gain=degrees asks for.')
flags.DEFINE_integer('gain_rounds', 50, 'Rounds of gossip of --gain=push_sum.', lower_bound=1)

_section('evaluation and output')
flags.DEFINE_integer('eval_every', 1, 'Rounds between evaluations.', lower_bound=1)
flags.DEFINE_integer(
    'client_eval_samples',
    None,
    "Test samples, the first of the set, on which each client's own model is evaluated (default "
    'all, as a set that is sorted by class needs).',
    lower_bound=1,
)
flags.DEFINE_string(
    'out',
    None,
    'Folder of the results (default of run and theory: runs/ALGORITHM-DATASET-TIME; of sweep: '
    'runs/sweep-TIME; of select: the run directory; of time: time; of attack: runs/attack-TIME).',
)
flags.DEFINE_bool(
    'resume',
    False,
    'Continue the run in --out from its last checkpoint, with its own settings; a larger --rounds '
    'extends it.',
)
flags.DEFINE_bool(
    'allow_imports',
    False,
    'Let --resume and select import the algorithm, model, task or loader that a config.json names '
    'as package.module:factory.',
)
flags.DEFINE_bool('checkpoint', True, 'Save a checkpoint at every evaluation.')
flags.DEFINE_string(
    'devices',
    'auto',
    "Devices over which the clients are spread: a number, 'all' that JAX sees, or 'auto', as many "
    'cores of a CPU as make a round faster and memory allows, and one of accelerators.',
)
flags.DEFINE_string(
    'distributed',
    None,
    'Start as one of several processes on all of their devices: auto (Slurm, a TPU pod), or '
    'HOST:PORT,i,n for process i of n.',
)
flags.DEFINE_bool('progress', True, 'Show a progress bar.')
flags.DEFINE_enum(
    'log',
    'text',
    ['text', 'json'],
    'What standard output says: text for people, or a line of JSON at the start, for every '
    'evaluation and at the end, for programs; the text then goes to standard error.',
)
flags.DEFINE_bool(
    'tensorboard',
    False,
    'Show every evaluation in TensorBoard: event files in the run directory.',
)
flags.DEFINE_bool(
    'wandb',
    False,
    'Show every evaluation in Weights & Biases; with WANDB_MODE=offline without an account.',
)
flags.DEFINE_string(
    'wandb_project', None, 'Project of --wandb (default $WANDB_PROJECT, else dfl_jax).'
)
flags.DEFINE_string(
    'compilation_cache', None, "Folder of XLA's persistent compilation cache, or 'off'."
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
