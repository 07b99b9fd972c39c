"""The results of `experiments.select` as the tables of selection.md."""

from collections.abc import Sequence

from dfl_jax.experiment.run_directory import Row
from dfl_jax.plain_text import markdown_table

NEIGHBOURS = ('all', 'better half')  # with whom a client averages there, ...
TIMES = ('once', 'twice')  # ... and how often
LABELS = {
    'best_to_worst': 'best to worst',
    'random': 'random',
    'worst_to_best': 'worst to best',
    'ring': 'ring, by client number',
}


def report(selection: Row) -> str:
    """selection.md: clients needed in every order, and what final topologies are worth."""
    accuracies = selection['client_accuracies']
    clients, draws = len(accuracies), len(selection['orders']['random']['reach'])
    honest = 'honest ' if selection.get('left_out') else ''
    text = (
        f'# Whom to average: {selection["algorithm"]} on {selection["dataset"]}, '
        f'{clients} {honest}clients after round {selection["round"]}\n\n'
        f'Test accuracy in percent on {selection["test_samples"]} samples; the other '
        f'{selection["validation_samples"]} rank the clients. The mean client has '
        f'{_percent(sum(accuracies) / clients)}, the worst {_percent(min(accuracies))} and the '
        f'best {_percent(max(accuracies))}; the average of all '
        f'{_percent(selection["average_of_all"])}.\n\n'
        f'{_orders_table(selection)}\n\n'
        f'Random: the mean of {draws} orders (and their range). The ring takes {clients - 1} '
        f'messages, one after the other, until one client holds the average of all, and as many '
        f'to hand it round; a fully connected network takes {clients * (clients - 1)} at once.\n'
    )
    if selection['final_topologies']:
        text += (
            '\nAveraging over one regular graph with uniform weights: the mean client and the '
            'worst, when a client averages with all its neighbours or with the half that is '
            f'better on the validation samples.\n\n{_topologies_table(selection)}\n'
        )
    return text


def _orders_table(selection: Row) -> str:
    sizes = [n for n in (1, 3, 10, 30, 100) if n < len(selection['client_accuracies'])]
    target = f'{100 * selection["target"]:.4g} %'
    heading = ['order', f'clients to reach {target}', 'to stay there', *map(str, sizes), 'all']
    body = []
    for how, curves in selection['orders'].items():
        drawn = [[curve[n - 1] for curve in curves['accuracies']] for n in [*sizes, 0]]
        means = [_percent(sum(values) / len(values)) for values in drawn]
        body.append([LABELS[how], _count(curves['reach']), _count(curves['stay']), *means])
    return markdown_table(heading, body, 1)


def _topologies_table(selection: Row) -> str:
    heading = ['degree', *(f'{near}, {times}' for near in NEIGHBOURS for times in TIMES)]
    body: dict[int, list[str]] = {}
    for row in selection['final_topologies']:
        pairs = zip(row['mean'], row['worst'], strict=True)
        line = body.setdefault(row['degree'], [str(row['degree'])])
        line += [f'{_percent(mean)}, {_percent(worst)}' for mean, worst in pairs]
    return markdown_table(heading, body.values(), 1)


def _percent(accuracy: float) -> str:
    return f'{100 * accuracy:.1f}'


def _count(counts: Sequence[int | None]) -> str:
    """The count of one order; of several the mean and the range."""
    numbers = [count for count in counts if count is not None]
    if not numbers:
        return 'never'
    if len(counts) == 1:
        return str(numbers[0])
    text = f'{sum(numbers) / len(numbers):.1f} ({min(numbers)} to {max(numbers)})'
    never = len(counts) - len(numbers)
    return f'{text}, {never} never' if never else text
