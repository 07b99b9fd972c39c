"""The settings of a run, in frozen dataclasses: their defaults, units, bounds and meanings.

A field's name is the flat name of the setting, which is the name of its flag, too, and of its entry
in config.json. Those of the method are in `dfl_jax.experiment.method`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dfl_jax.method_settings import Setting, described_part

ADVERSARIES = ('eavesdropper', 'neighbour', 'server')


def setting(
    default: Any,
    *,
    least: int | None = None,
    choices: tuple[str, ...] = (),
    path: str | None = None,
    traced: bool = False,
) -> Any:
    """A field with a bound, with choices, or that is a path; path: a pattern of what stands before
    the path. traced: it decides what enters a compiled program, not the program, so that runs of
    one program may differ in it."""
    about = {'least': least, 'choices': choices, 'path': path, 'traced': traced}
    return dataclasses.field(default=default, metadata=about)


@dataclass(frozen=True)
class Network:
    """The model of every client.

    Args:
      model: Network: mlp (one hidden layer of 100), linear, cnn, cnn3, cnn_dropout, vgg16, gru (for
        texts); an architecture, e.g. cnn-32-64, resnet-64-128-256-512, vit-512-512 or
        efficientnet-b0; or package.module:factory.
      hidden: Hidden widths of `model=mlp`, e.g. 512,256,128 (default 100).
      initializer: Distribution of the initial weights: he_normal (the default of most models),
        he_uniform, glorot_normal, glorot_uniform, lecun_normal, lecun_uniform or orthogonal.
    """

    model: str = 'mlp'
    hidden: tuple[str, ...] | None = None
    initializer: str | None = None


@dataclass(frozen=True)
class Data:
    """The data set, and what is done to its inputs.

    Args:
      dataset: One of digits, synthetic, sonnets, mnist, fashion_mnist, cifar10, cifar100, so2sat,
        image_folder, leaf; a .npz file with train_x [n, ...], train_y [n] (whole numbers from 0, or
        the targets of `task`), test_x and test_y; a .csv or .parquet table, with `columns`; a text,
        .txt; hf:NAME of Hugging Face, or hf:FOLDER; or package.module:factory (docs/data.md).
      task: What the targets are: classification; regression (numbers [n] or [n, C], squared error);
        multi_label (0 or 1, [n, C]); next_token (whole numbers [n, L], for a model that returns [B,
        L, C]); or package.module:factory of a dfl_jax.tasks.Task. Gradient and asynchronous methods
        learn all of them; ntk_dfl and ntk_fl also regression, with `loss=mse`, and any task but
        next_token, with `loss=task`.
      data_dir: Folder of the data sets; missing files are downloaded into it (default: in the cache
        folder of the user).
      train_samples: Use only so many training samples, drawn at random by `seed`.
      test_samples: Use only so many test samples, drawn at random by `seed`.
      image_size: Rows and columns to which images of `dataset=image_folder` (default 64) and hf:
        are resized.
      columns: What the columns of a table are, e.g. target=price,client=shop: target (the column to
        predict; several joined by +), client (the user that a row belongs to, for
        `partition=natural`), split (holds train and test), drop (not used); all others are
        features, and number and category say of which kind, where it does not show. For hf: input,
        target and client.
      test_share: Share of a table, a text or a data set of hf: that becomes the test set, if the
        data have no test set of their own (default 0.2).
      text_window: Characters in each sample of a text (default 40).
      input_projection: Project the inputs to this number of dimensions by one random matrix that
        all clients share.
      feature_shift: Change the inputs of each client in its own way: quarter_turns of images,
        angle:DEGREES, colour:STRENGTH, or noise:STRENGTH for any inputs (docs/data.md).
    """

    dataset: str = setting('digits', path='^(?:hf:)?')
    task: str = 'classification'
    data_dir: str | None = setting(None, path='^')
    train_samples: int | None = None
    test_samples: int | None = None
    image_size: int | None = None
    columns: tuple[str, ...] | None = None
    test_share: float | None = None
    text_window: int | None = None
    input_projection: int | None = setting(None, least=1)
    feature_shift: str | None = setting(None, traced=True)


@dataclass(frozen=True)
class Partition:
    """Which client has which training samples.

    Args:
      clients: Number of clients M.
      partition: One of iid, balanced, dirichlet, dirichlet_split, zipf, lognormal, shards,
        two_group (half of the classes at half of the clients), natural (each client is one user of
        the data set, drawn at random where there are more users than clients) or writer (each
        client is a group of its users).
      alpha: Dirichlet concentration; smaller is more heterogeneous.
      zipf_exponent: For `partition=zipf`: exponent of the distribution of the shares of a class,
        above 1; a smaller one has larger shares.
      lognormal_sigma: For `partition=lognormal`: standard deviation of the logarithm of client
        sizes.
      shards_per_client: For `partition=shards`: how many shards of the label-sorted samples each
        client gets.
      samples_per_client: For `partition=balanced`: samples of each client (default: as many as the
        scarcest class allows).
      partition_overlap: For `partition=dirichlet`: each client draws from the whole training set,
        so that clients may share samples.
      partition_file: JSON file that replaces `partition`: for each client a list of indices of its
        training samples, none twice in a list.
      arrival: Samples that arrive over time: linear:ROUNDS (as many in each of so many rounds, in a
        random order), class_by_class:ROUNDS (one class after the other), or file:PATH, a JSON list
        of the round, from 0, in which each training sample is there first (default: all are there
        from the start). Not for asynchronous methods.
      validation_share: Share of its samples that each client keeps from training, and on which its
        own model is then evaluated, as local_accuracy_mean in metrics.jsonl (default 0.2 for dfml
        and its baselines, 0 for others). Not for ntk_fl, whose clients have no models of their own.
    """

    clients: int = setting(30, least=1)
    partition: str = 'dirichlet'
    alpha: float = setting(0.1, traced=True)
    zipf_exponent: float = setting(1.8, traced=True)
    lognormal_sigma: float = setting(1.0, traced=True)
    shards_per_client: int = 2
    samples_per_client: int | None = None
    partition_overlap: bool = setting(False, traced=True)
    partition_file: str | None = setting(None, path='^', traced=True)
    arrival: str | None = setting(None, path='^file:', traced=True)
    validation_share: float | None = None


@dataclass(frozen=True)
class Graphs:
    """Who hears whom in which round, and what fails.

    Args:
      topology: A new graph in every round, its clients relabelled, unless `static_topology`. One of
        regular, ring, line, complete, star, erdos_renyi, barabasi_albert, watts_strogatz, torus,
        configuration, chung_lu, clustered, two_group, hypercube, k_random (each client hears
        `degree` others, who need not hear it), epidemic (each client is heard by `degree` others,
        and hears any number), directed_ring, exponential (client i hears i - 2^j for all 2^j < M);
        one_peer_exponential (one of the links of exponential in each round) and base_graph (at most
        `degree` neighbours in a round), which have mixing weights of their own and average exactly
        in a few rounds; one_peer_equi (client i hears i - u, with u drawn anew every round), as
        fast for any number of clients; or edge_list, directed_edge_list or matrix, with
        `topology_file` (docs/topologies.md).
      degree: Neighbours of a client, or their mean number where the family is random.
      link_probability: For `topology=erdos_renyi`, in place of `degree`: probability of a link.
      degree_exponent: For `topology=configuration` and chung_lu: exponent of the power law of
        degrees; a smaller one has larger hubs.
      rewiring: For `topology=watts_strogatz`: probability that a link of the ring lattice goes to a
        random client instead.
      torus_dimensions: For `topology=torus`: its dimensions.
      assortativity: Rewire every graph until the degrees at both ends of a link have this
        correlation; all degrees are kept.
      static_topology: Use one graph for all rounds instead of a new one in each round.
      topology_file: For `topology=edge_list`, as networkx.write_edgelist writes it: two client
        numbers in each line, and optionally the weight that they give each other. For
        `topology=directed_edge_list` the second client hears the first. For `topology=matrix`, as
        numpy.save writes it: mixing weights [M, M] whose rows sum to one, or [T, M, M] for
        successive rounds.
      link_dropout: Probability that a link fails in a round.
      directed_dropout: With `link_dropout`: each direction of a link fails by itself, instead of
        both together.
      link_dropout_directed: Probability that one direction of a link fails in a round, each by
        itself; beside `link_dropout`, of those links that it leaves.
      client_dropout: Probability that a client sits out a round.
      receive_dropout: Probability that a client receives nothing in a round; others still receive
        from it.
      isolate_dropout: Probability that a client neither sends nor receives in a round, and trains
        on its own.
    """

    topology: str = 'regular'
    degree: int = 5
    link_probability: float | None = None
    degree_exponent: float = 2.5
    rewiring: float = 0.1
    torus_dimensions: int = setting(2, least=1)
    assortativity: float | None = None
    static_topology: bool = setting(False, traced=True)
    topology_file: str | None = setting(None, path='^')
    link_dropout: float = setting(0.0, traced=True)
    directed_dropout: bool = False
    link_dropout_directed: float = setting(0.0, traced=True)
    client_dropout: float = setting(0.0, traced=True)
    receive_dropout: float = setting(0.0, traced=True)
    isolate_dropout: float = setting(0.0, traced=True)


@dataclass(frozen=True)
class Time:
    """Simulated seconds.

    Args:
      world: Network and device profile from which simulated_seconds are computed: settings such as
        speed=1e10,uplink=5.6e6,latency=0.05 (operations a second, bits a second, seconds), each a
        number, lognormal:MEDIAN:SIGMA or two:SLOW:FAST:SHARE, and online=sine:PERIOD:SHARE; or
        devices (500 made-up ones); or a .csv or .npz file (docs/time.md).
      barrier: With `world`: all clients wait for the last one in each round.
      round_seconds: With a `world` that has online times: round r begins after r times so many
        seconds, and clients that are offline then sit it out (default: the others wait for them).
        Asynchronous methods are evaluated at intervals of so many simulated seconds, `rounds`
        times.
    """

    world: str | None = setting(None, path=r'(?:^|;)\s*')
    barrier: bool = False
    round_seconds: float | None = None


@dataclass(frozen=True)
class Architectures:
    """Clients of different architectures: which client has which, and who meets in a round.

    Args:
      architectures: Networks of dfml and its baselines, assigned to the clients in turn: a mode of
        the paper (h0, h1_cnn, h1_resnet, h1_vit, h2_cnn, h2_efficientnet, h2_mixed) or names like
        cnn-32-64, resnet-64-128-256-512, vit-512-512, efficientnet-b0 (default: h2_cnn, or what the
        baseline can train).
      architecture_ratios: Ratios of the numbers of clients with each of `architectures`, e.g. 2,1,1
        (default: equal).
      architecture_file: File with the name of one architecture in each line, in the order of the
        clients.
      dfml_width: Factor on every number of channels of `architectures`.
      senders: Clients that send to an aggregator in a round (default: half of the clients).
      aggregators: Aggregators in a round, to which the senders are assigned (default 1; def_kt: one
        for each sender).
      aggregator: How the aggregator is chosen: drawn in each round from all
        clients (uniform), drawn from those that the last aggregator hears (walk), or always client
        0 (fixed).
    """

    architectures: tuple[str, ...] | None = None
    architecture_ratios: tuple[str, ...] | None = None
    architecture_file: str | None = setting(None, path='^')
    dfml_width: float = 1.0
    senders: int | None = None
    aggregators: int | None = None
    aggregator: str = setting('uniform', choices=('uniform', 'walk', 'fixed'))


@dataclass(frozen=True)
class Gain:
    """What clients know of the network when they compute the gain of init='gain_corrected'.

    Args:
      gain: What clients know to compute their gain from: the
        whole graph (graph: 1 / ||v_steady||); `topology` and the number of clients n (family); n
        and the degrees of `gain_polled` clients (degrees); n alone (size: n**gain_exponent); or n
        as each client estimates it by gossip (push_sum).
      gain_size_factor: For `gain=family`, degrees and size: the assumed number of clients over the
        true one.
      gain_exponent: For `gain=size` and push_sum: exponent of n.
      gain_polled: For `gain=degrees`: number of clients whose degrees are known.
      gain_rounds: For `gain=push_sum`: rounds of gossip.
    """

    gain: str = setting('graph', choices=('graph', 'family', 'degrees', 'size', 'push_sum'))
    gain_size_factor: float = 1.0
    gain_exponent: float = 0.5
    gain_polled: int = 20
    gain_rounds: int = setting(50, least=1)


@dataclass(frozen=True)
class Adversaries:
    """Clients that lie; `aggregation`, of the method, is what protects the others.

    Args:
      attackers: Which clients lie: a share of them, e.g. 0.2, or a number, e.g. 3, drawn at random
        by `seed`; or file:PATH, a JSON list of client numbers. Means are taken over the others.
        What they do is `attack`: sign_flip, alie:1.5, label_flip, ... (docs/adversaries.md).
      attackers_each: Refuse graphs in which an honest client has more attackers than this among
        its neighbours.
      attack: What attackers send: sign_flip or sign_flip:SCALE, gaussian:SIGMA, zero, nan,
        same_value:VALUE, random_model, alie:Z, ipm:EPSILON, dissensus:EPSILON, or
        package.module:function; or jacobian_flip or jacobian_flip:SCALE, the rows of their
        Jacobians alone. Or what they train on, and then send honestly what they learnt: label_flip,
        random_labels, or backdoor:SHARE of their samples (docs/adversaries.md).
    """

    attackers: str | None = setting(None, path='^file:')
    attackers_each: int | None = setting(None, least=0)
    attack: str | None = None


@dataclass(frozen=True)
class Privacy:
    """What an epsilon is claimed for; `dp_clip` and `dp_noise_multiplier`, of the method's local
    training, are the mechanism (docs/privacy.md).

    Args:
      dp_epsilon: Epsilon of the whole run, of the client that spends most: the noise follows from
        it where `dp_noise_multiplier` is left out; else a run that spends more is refused.
      dp_delta: For which epsilon is given, below one over the number of samples of a client, or of
        clients.
      dp_adversary: Against whom epsilon is claimed: an eavesdropper, who hears all messages and
        knows no noise that neighbours share; a neighbour, any one client, who knows that of its own
        links, too; or a server, who sees the average of all clients alone (central privacy), where
        that is all that a round leaves.
      dp_share_noise: Choose `dp_correlated_noise`, too, such that least noise stays in the models
        at this `dp_epsilon`, if all rounds had the graph of the first (DECOR).
      stop_at_epsilon: End before the round that would spend more than `dp_epsilon`, in place of
        refusing the run.
    """

    dp_epsilon: float | None = None
    dp_delta: float | None = None
    dp_adversary: str = setting('eavesdropper', choices=ADVERSARIES)
    dp_share_noise: bool = False
    stop_at_epsilon: bool = False


@dataclass(frozen=True)
class Evaluation:
    """When models are evaluated, and on what.

    Args:
      eval_every: Rounds between evaluations.
      client_eval_samples: Number of test samples on which each client's own model is evaluated,
        drawn at random by `seed`, the same share of every class (default: all); the consensus model
        sees all.
      evaluate_clients: JSON file with the numbers of the clients over which means are taken and
        whose models make the consensus model (default: all). clients.jsonl has all in any case.
      membership: Report how well somebody who receives a model tells samples that its client
        trained on from others by their losses, as membership_auc_mean and more in metrics.jsonl.
        The others are those of `validation_share`, and without it the test samples. Not for
        ntk_fl, whose clients have no models of their own.
    """

    eval_every: int = setting(1, least=1)
    client_eval_samples: int | None = setting(None, least=1)
    evaluate_clients: str | None = setting(None, path='^')
    membership: bool = False


@dataclass(frozen=True)
class Placement:
    """Where a run is computed; its results are the same to a few last bits wherever it is.

    Args:
      devices: Devices over which the clients are spread: a number; all, those that JAX sees; or
        auto: one of the accelerators, or on a CPU as many cores as make a round faster and memory
        allows.
      distributed: Run as one of several processes that use all of their devices: auto (Slurm, a TPU
        pod), or HOST:PORT,i,n for process i of n.
    """

    devices: str = 'auto'
    distributed: str | None = None


# Settings of a partition, by what they set of `data.partition`
OF_PARTITIONS = {
    'alpha': 'alpha',
    'partition_overlap': 'overlap',
    'zipf_exponent': 'exponent',
    'lognormal_sigma': 'lognormal_sigma',
    'shards_per_client': 'shards_per_client',
    'samples_per_client': 'samples_per_client',
}
# Settings of a graph family, by what they set of `topology.Settings`
OF_FAMILIES = {
    'topology_file': 'path',
    'degree': 'degree',
    'link_probability': 'probability',
    'degree_exponent': 'exponent',
    'torus_dimensions': 'dimensions',
    'rewiring': 'rewiring',
}
PARTS: dict[str, type] = {  # the fields of an Experiment that hold settings, in the order of --help
    'network': Network,
    'data': Data,
    'partition': Partition,
    'graphs': Graphs,
    'time': Time,
    'architectures': Architectures,
    'gain': Gain,
    'adversaries': Adversaries,
    'privacy': Privacy,
    'evaluation': Evaluation,
    'placement': Placement,
}
PART_OF = {field.name: part for part, cls in PARTS.items() for field in dataclasses.fields(cls)}


def settings_of_runs() -> dict[str, Setting]:
    """All of these settings by name."""
    found: dict[str, Setting] = {}
    for part, cls in PARTS.items():
        found |= described_part(part, cls())
    return found


def bounds_of(name: str) -> Mapping[str, Any]:
    """What `setting` was told of the field of that name."""
    if name not in PART_OF:
        return {}
    return next(f.metadata for f in dataclasses.fields(PARTS[PART_OF[name]]) if f.name == name)
