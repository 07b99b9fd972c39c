"""Where runs are: the run directories below a folder."""

import os
import re
from pathlib import Path

OF_A_RUN = ('checkpoints', 'config.json', 'metrics.jsonl')  # no folders of runs


def directories(source: Path) -> list[Path]:
    """Every folder that a run has written to, n8 before n16."""
    found = []
    for folder, folders, files in os.walk(source):
        if {'config.json', 'metrics.jsonl'} & {*files, *folders}:
            found.append(Path(folder))
        folders[:] = [name for name in folders if name not in OF_A_RUN]
    parts = lambda path: re.split(r'(\d+)', str(path))  # noqa: E731
    return sorted(
        found, key=lambda p: [(int(d), '') if d.isdecimal() else (-1, d) for d in parts(p)]
    )
