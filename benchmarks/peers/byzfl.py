"""ByzFL: its rules in a loop over receivers, for `python -m benchmarks.robust --peer=PYTHON`.

The first argument is a file with models [M, P] float32 and members [M, K], the second the number
of threads. Every line of the input is a rule, [class, *values]; the answer to each is a line of
JSON: the seconds of combining once what every receiver hears, and what a few weights became.
"""

import json
import sys
import time
from importlib.metadata import version

import byzfl
import numpy as np
import torch

EVERY = 1000  # weights, of which one is reported


def rule_of(name, *values):
    """The rule of a class of ByzFL, of NNM+CLASS after nearest neighbour mixing."""
    if name.startswith('NNM+'):
        mixed, rule = byzfl.NNM(*values), rule_of(name.removeprefix('NNM+'), *values)
        return lambda vectors: rule(mixed(vectors))
    rule = getattr(byzfl, name)(*values)
    if name != 'CenteredClipping':
        return rule

    def around_own(vectors):
        rule.m = vectors[0]  # its constructor refuses every centre
        return rule(vectors)

    return around_own


def main() -> None:
    path, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    arrays = np.load(path)
    models, members = (torch.from_numpy(arrays[name]) for name in ('models', 'members'))
    new = torch.empty_like(models)
    print(json.dumps(f'ByzFL {version("byzfl")}, PyTorch {torch.__version__}'), flush=True)
    for line in sys.stdin:
        rule = rule_of(*json.loads(line))
        begin = time.perf_counter()
        for i, heard in enumerate(members):
            new[i] = rule(models[heard])
        seconds = time.perf_counter() - begin
        print(json.dumps([seconds, new[:, ::EVERY].tolist()]), flush=True)


if __name__ == '__main__':
    main()
