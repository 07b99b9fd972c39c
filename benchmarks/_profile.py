"""The time that a program's kernels take, from a trace of JAX's profiler."""

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData

TOP = 20  # kernels listed


def profiled(call: Callable[[], Any]) -> list[dict[str, Any]]:
    """The kernels that took the most time while `call` ran, see `by_kernel`."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        (path,) = Path(folder).rglob('*.xplane.pb')
        return by_kernel(events(ProfileData.from_file(str(path))))


def events(trace: ProfileData) -> Iterable[tuple[str, float]]:
    """Name and nanoseconds of each kernel that ran on a device, on a CPU of each operation of XLA.

    Loops of a CPU are left out: their time is that of what they hold.
    """
    planes = list(trace.planes)
    devices = [plane for plane in planes if plane.name.startswith('/device:')]
    for plane in devices or planes:
        for line in plane.lines:
            for event in line.events:
                of_xla = 'hlo_op' in {name for name, _ in event.stats}
                loop = not devices and event.name.startswith(('while', 'call', 'conditional'))
                if of_xla and not loop:
                    yield event.name, event.duration_ns


def by_kernel(found: Iterable[tuple[str, float]], top: int = TOP) -> list[dict[str, Any]]:
    """Calls, milliseconds and share of the whole time of each kernel, the longest first.

    found: name and nanoseconds of each call. What is beyond `top` is one row, `others`.
    """
    spent: dict[str, list[float]] = {}
    for name, nanoseconds in found:
        spent.setdefault(name, []).append(nanoseconds / 1e6)
    whole = sum(map(sum, spent.values()))
    order = sorted(spent, key=lambda name: -sum(spent[name]))
    groups = {name: spent[name] for name in order[:top]}
    if order[top:]:
        groups['others'] = [each for name in order[top:] for each in spent[name]]
    return [
        {'kernel': name, 'calls': len(ms), 'ms': sum(ms), 'share': sum(ms) / whole}
        for name, ms in groups.items()
    ]
