"""The code in the documentation runs as it stands."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def code_blocks(document, language):
    text = (ROOT / 'docs' / document).read_text()
    return re.findall(rf'```{language}\n(.*?)```', text, flags=re.DOTALL)


def test_the_example_algorithm_learns(tmp_path):
    (tmp_path / 'gossip_gd.py').write_text(code_blocks('adding_an_algorithm.md', 'python')[0])
    (command,) = code_blocks('adding_an_algorithm.md', 'sh')
    words = command.split()
    assert words[:3] == ['python', '-m', 'experiments.run']
    path = f'{ROOT}:{tmp_path}'
    subprocess.run(
        [sys.executable, *words[1:], '--dataset=synthetic', f'--out={tmp_path / "run"}'],
        check=True,
        cwd=tmp_path,
        env={'PYTHONPATH': path, 'JAX_PLATFORMS': 'cpu', 'HOME': str(tmp_path)},
    )
    lines = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert last['round'] == 100
    assert last['consensus_accuracy'] > 0.9 > first['consensus_accuracy']
