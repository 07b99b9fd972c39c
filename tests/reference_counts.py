"""What the clients of each method send and compute in a round, written out from the papers.

Plain arithmetic on the shapes of tensors and layers; nothing here asks the program how large a
message is or how many of them there are. A link is one that delivers: (receiver, sender).
"""

import itertools
import math
from typing import NamedTuple

from scipy.optimize import brentq

FLOAT = LABEL = 32  # bits


class Net(NamedTuple):
    """A network as it is counted: layers (inputs, outputs, places where they are applied)."""

    tensors: dict  # layer -> shapes of its weights, in order
    layers: tuple  # (inputs of an output, outputs, places), the first one first
    inputs: int  # numbers of a sample
    outputs: int

    @property
    def shapes(self):
        return [shape for of_layer in self.tensors.values() for shape in of_layer]

    @property
    def size(self):
        return sum(map(math.prod, self.shapes))

    @property
    def forward(self):
        """Operations of the outputs of one sample, a multiplication and an addition being two."""
        return sum(2 * fan * units * places for fan, units, places in self.layers)

    @property
    def gradient(self):
        """The same of a gradient: outputs, weights of all layers, and inputs of all but one."""
        first = 2 * math.prod(self.layers[0])
        return 3 * self.forward - first


def dense(*widths):
    """Dense layers with biases, by the names that flax gives them."""
    pairs = [*itertools.pairwise(widths)]
    tensors = {f'Dense_{i}': [(b,), (a, b)] for i, (a, b) in enumerate(pairs)}
    return Net(tensors, tuple((a, b, 1) for a, b in pairs), widths[0], widths[-1])


def message(shapes, sparsity=None, bits=None):
    """Bits of tensors of these shapes: values, where they belong, and the step of each tensor."""
    total = 0
    for n in map(math.prod, shapes):
        kept, where = n, 0
        if sparsity is not None:
            kept = math.ceil(round(n * (1 - sparsity), 6))
            where = min(n, kept * math.ceil(math.log2(n)))
        total += kept * (bits or FLOAT) + where + (FLOAT if bits else 0)
    return total


def kept_by_a_mask(shapes, density):
    """Weights that DisPFL keeps of each tensor, whose share is as sum(shape) / prod(shape)."""
    sizes, sums = [*map(math.prod, shapes)], [*map(sum, shapes)]

    def excess(epsilon):
        kept = sum(min(n, epsilon * s) for n, s in zip(sizes, sums, strict=True))
        return kept - density * sum(sizes)

    epsilon = brentq(excess, 0, max(n / s for n, s in zip(sizes, sums, strict=True)), xtol=1e-14)
    kept = (min(n, epsilon * s) for n, s in zip(sizes, sums, strict=True))
    return [max(1, math.floor(each + 1e-9)) for each in kept]


class Case(NamedTuple):
    """A method's settings and its network, in one round."""

    nets: dict  # architecture -> Net
    owner: list  # of each client, its architecture
    sizes: list  # N_i
    round: int  # 0, 1, ...
    settings: dict

    def net(self, client=0):
        return self.nets[self.owner[client]]

    def get(self, name, default=None):
        return self.settings.get(name, default)

    def coded(self, shapes):
        """Bits of tensors of these shapes, compressed as the settings say."""
        return message(shapes, self.get('sparsity'), self.get('bits'))


# ----------------------------------------------------------------------------------------- traffic
# (case, sender, receiver) -> bits that the sender sends it, and bits that come back


def weights(case, sender, receiver):
    """The trained model, or a difference, in each averaging step."""
    return case.get('gossip_steps', 1) * case.coded(case.net().shapes), 0


def weights_and_a_number(case, sender, receiver):
    """SGP's mass, RelaySGD's count and the age of gossip learning travel with the model."""
    return case.coded(case.net().shapes) + FLOAT, 0


def weights_and_tracker(case, sender, receiver):
    return 2 * case.coded(case.net().shapes), 0


def beer(case, sender, receiver):
    """Differences of weights and tracker; the tracker starts as the gradient, and with nothing to
    send: V^0 = grad F, G^0 = 0."""
    each = case.coded(case.net().shapes)
    return each * (1 if case.round == 0 else 2), 0


def dispfl(case, sender, receiver):
    """The weights inside the mask, and a bit for every weight of the model."""
    net = case.net()
    kept = kept_by_a_mask(net.shapes, case.get('density', 0.5))
    return case.coded([(n,) for n in kept]) + net.size, 0


def dfed_alt(case, sender, receiver):
    """The body; the head stays."""
    head = case.get('head', [*case.net().tensors][-1])
    body = [shapes for name, shapes in case.net().tensors.items() if name != head]
    return case.coded([shape for shapes in body for shape in shapes]), 0


def jacobians(case, sender):
    """A sender's Jacobian, a row an output and sample, its outputs, and its targets."""
    net, samples = case.net(), math.ceil(case.sizes[sender] / case.get('subsampling', 1))
    target = FLOAT * net.outputs if case.get('regression') else LABEL
    return samples * (net.outputs * (case.coded(net.shapes) + FLOAT) + target)


def ntk_dfl(case, sender, receiver):
    """w_j to the aggregator, which sends the average back, once for each batch (E.1); a cluster
    gets the new weights, too (E.2)."""
    model = FLOAT * case.net().size
    there = model * case.get('averaging', True) + jacobians(case, sender)
    own = case.get('jacobian_weights') == 'neighbours'
    return there, model * (0 if own else case.get('batches', 1) + case.get('by_cluster', False))


def ntk_fl(case, sender, server):
    """What the server sends is no traffic of the clients, nor is the server one of them."""
    return jacobians(case, sender), 0


def spark(case, sender, receiver):
    """The same with k numbers a row, and where the network chooses the timestep the inputs; for an
    exact step residuals go out, and shares of it come back."""
    net = case.net()
    share = case.get('sampling', 1.0)
    n = math.ceil(round(share * case.sizes[sender], 9))
    exchange, k = case.get('exchange', 'float32'), case.get('projection_dim')
    width = {'float32': 32, 'float16': 16, 'int8': 8}[exchange]
    model, exact = case.coded(net.shapes), case.get('step_form') == 'exact'
    inputs = FLOAT * net.inputs * (case.get('selection', 'network') == 'network')
    of_sample = net.outputs * (k * width + FLOAT) + LABEL + inputs
    step = FLOAT if exchange == 'int8' else 0  # of the quantizer, one for each message
    there = model * case.get('averaging', True) + n * of_sample + step + FLOAT * net.size * exact
    return there, model + FLOAT * n * net.outputs * exact


def meeting(case, sender, aggregator):
    """The sender's model, and its updated one back."""
    each = case.coded(case.net(sender).shapes)
    return each, each


def def_kt(case, sender, aggregator):
    return case.coded(case.net(sender).shapes), 0


def dec_fml(case, sender, aggregator):
    """Memes, whose architecture is the median in size."""
    by_size = sorted(case.nets.values(), key=lambda net: net.size)
    each = case.coded(by_size[len(by_size) // 2].shapes)
    return each, each


TRAFFIC = {
    'ntk_dfl': ntk_dfl,
    'dpsgd': weights,
    'dfedavg': weights,
    'dfedavgm': weights,
    'dfedsam': weights,
    'decavg': weights,
    'dispfl': dispfl,
    'ntk_fl': ntk_fl,
    'spark': spark,
    'dsgt': weights_and_tracker,
    'd2': weights,
    'relay_sgd': weights_and_a_number,
    'qg_dsgdm': weights,
    'sgp': weights_and_a_number,
    'choco_sgd': weights,
    'beer': beer,
    'epidemic': weights,
    'dfedprox': weights,
    'dfed_admm': weights,
    'dfed_alt': dfed_alt,
    'dfml': meeting,
    'dec_fedavg': meeting,
    'dec_fedprox': meeting,
    'def_kt': def_kt,
    'dec_fed_dropout': meeting,
    'dec_heterofl': meeting,
    'dec_fedrolex': meeting,
    'dec_fml': dec_fml,
    # without rounds, for each message that arrives; of DivShare a message is one parameter
    'ad_psgd': weights,
    'gossip_learning': weights_and_a_number,
    'swift': weights,
    'divshare': lambda case, sender, receiver: (FLOAT, 0),
}


def bits_of_round(name, case, links, server=False):
    """Bits that each client sends, exact; links: (receiver, sender) of all that deliver."""
    sent = [0] * len(case.sizes)
    for receiver, sender in links:
        there, back = TRAFFIC[name](case, sender, receiver)
        sent[sender] += there
        if not server:
            sent[receiver] += back
    return sent


# -------------------------------------------------------------------------------------- operations


def samples_seen(n, batch, epochs=None, steps=None):
    """How many samples the minibatches of a round hold: whole epochs, or so many minibatches."""
    of_epoch = [min(batch, n - first) for first in range(0, n, batch)]
    if steps is None:
        return epochs * sum(of_epoch)
    return sum((of_epoch * math.ceil(steps / len(of_epoch)))[:steps])


def local(case, client, net=None):
    """A gradient of every sample of the minibatches, and with SAM a second one."""
    n, get = case.sizes[client], case.get
    seen = samples_seen(n, get('batch_size'), get('local_epochs'), get('local_steps'))
    return seen * (net or case.net(client)).gradient * (2 if get('sam_radius') else 1)


def with_the_head(case, client):
    """DFedAlt: the epochs of the head, then those of the body."""
    head = case._replace(settings=case.settings | {'local_epochs': case.get('head_epochs', 1)})
    return local(case, client) + local(head, client)


def with_a_search(case, client):
    """DisPFL: one more minibatch, whose gradient tells which weights to regrow."""
    batch = min(case.get('batch_size'), case.sizes[client])
    searched = batch * case.net().gradient * (case.get('regrow', 'gradient') == 'gradient')
    return local(case, client) + searched


# Methods whose active clients work on their own data alone; the others follow by name
ALONE = {
    **dict.fromkeys(
        (
            *('dpsgd', 'dfedavg', 'dfedavgm', 'dfedsam', 'decavg', 'dsgt', 'd2', 'relay_sgd'),
            *('qg_dsgdm', 'sgp', 'choco_sgd', 'beer', 'epidemic', 'dfedprox', 'dfed_admm'),
        ),
        local,
    ),
    'dfed_alt': with_the_head,
    'dispfl': with_a_search,
}
MEETINGS = (
    *('dfml', 'dec_fedavg', 'dec_fedprox', 'def_kt', 'dec_fed_dropout', 'dec_heterofl'),
    *('dec_fedrolex', 'dec_fml'),
)
KERNELS = ('ntk_dfl', 'ntk_fl', 'spark')
UPDATES = ('ad_psgd', 'gossip_learning', 'swift', 'divshare')  # for each update of a client


def flops_of_meeting(name, case, present):
    """(all operations, those of aggregators once all messages are there) by client, at one meeting.

    present: the participants that are there, the aggregator first.
    """
    work, combining = [0] * len(case.sizes), [0] * len(case.sizes)
    aggregator, *senders = present
    n, epochs = case.sizes[aggregator], case.get('mutual_epochs')
    for m in present:
        if name != 'def_kt' or m != aggregator:
            work[m] += local(case, m)
        if name == 'dec_fml':  # the meme learns on the same minibatches
            by_size = sorted(case.nets.values(), key=lambda net: net.size)
            work[m] += local(case, m, by_size[len(by_size) // 2])
        if name == 'dfml':
            learns = case.get('transfer', 'mutual') == 'mutual' or m == aggregator
            net = case.net(m)
            combining[aggregator] += epochs * n * (net.gradient if learns else net.forward)
        if name == 'def_kt' and senders:
            combining[aggregator] += epochs * n * case.net(m).gradient
    return [a + b for a, b in zip(work, combining, strict=True)], combining


def kernel_update(net, samples, products, tried):
    """A network d, h, C: its outputs, the kernel of its two layers, the products with it, and the
    weights and outputs of every timestep that is tried.

    H = (A A^T + 1) + (X X^T + 1) (G G^T) is symmetric, and 21 of 36 blocks of each product are
    computed.
    """
    (d, h, _), (_, outputs, _) = net.layers
    kernel = 2 * samples**2 * (d + 2 * h) * 21 / 36
    step = 2 * samples * (d * h + 2 * h * outputs)  # J^T S, with the outputs known
    flow = products * 2 * samples**2 * outputs
    return samples * net.forward + kernel + flow + tried * (step + samples * net.forward)


def projected_update(net, samples, products, tried, dimension):
    """SPARK with a Gaussian P [P, k]: outputs, columns J p of J~, products J~ (J~^T S), and of each
    timestep that is tried P J~^T S and the outputs.

    Columns are formed by 50 at a time, also where k is less.
    """
    (d, h, _), (_, outputs, _) = net.layers
    columns = -(-dimension // 50) * 50 * 2 * samples * (d * h + 2 * h * outputs)
    half = 2 * dimension * outputs * samples  # J~^T S
    lift = 2 * dimension * net.size
    step = half + lift + samples * net.forward
    return samples * net.forward + columns + products * 2 * half + tried * step
