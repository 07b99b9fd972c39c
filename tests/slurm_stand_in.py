"""What submitit calls of Slurm, on one machine: sbatch, srun, scontrol requeue, scancel, sacct.

    python tests/slurm_stand_in.py COMMAND FOLDER ARGUMENTS

Jobs of an array all start at once. FOLDER keeps a file a job: its process and its command.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

JOB = '12'
COMMANDS = ('sbatch', 'srun', 'scontrol', 'scancel', 'sacct')


def install(folder: Path) -> dict[str, str]:
    """The environment in which the commands are found; they are written into the folder."""
    folder.mkdir()
    for name in COMMANDS:
        file = folder / name
        call = shlex.join([sys.executable, __file__, name, str(folder)])
        file.write_text(f'#!/bin/sh\nexec {call} "$@"\n')
        file.chmod(0o755)
    return {'PATH': f'{folder}:{os.environ["PATH"]}'}


def start(folder: Path, task: str, command: list[str]) -> None:
    ids = {'SLURM_JOB_ID': f'{JOB}{task}', 'SLURM_ARRAY_JOB_ID': JOB, 'SLURM_ARRAY_TASK_ID': task}
    places = {f'SLURM_{name}': '0' for name in ('PROCID', 'LOCALID', 'NODEID')}
    sizes = {'SLURM_NTASKS': '1', 'SLURM_JOB_NUM_NODES': '1', 'SLURM_JOB_NODELIST': 'here'}
    environment = os.environ | ids | places | sizes | {'SUBMITIT_EXECUTOR': 'slurm'}
    with open(folder / f'{task}.log', 'a') as log:
        job = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    (folder / f'{task}.json').write_text(json.dumps({'pid': job.pid, 'command': command}))


def main(name: str, folder: Path, arguments: list[str]) -> None:
    if name == 'sbatch':
        text = Path(arguments[-1]).read_text()
        first, last = re.search(r'#SBATCH --array=(\d+)-(\d+)', text).groups()
        command = shlex.split(text.splitlines()[-1])
        for task in range(int(first), int(last) + 1):
            start(folder, str(task), command[command.index(sys.executable) :])
        print(f'Submitted batch job {JOB}')
    elif name == 'scontrol':
        assert arguments[0] == 'requeue', arguments
        task = arguments[1].rpartition('_')[2]
        job = json.loads((folder / f'{task}.json').read_text())
        (folder / f'{task}.requeued').touch()
        start(folder, task, job['command'])
    elif name == 'scancel':
        job = json.loads((folder / f'{arguments[0].rpartition("_")[2]}.json').read_text())
        os.kill(job['pid'], signal.SIGTERM)
    elif name == 'sacct':
        print('JobID|State|NodeList')


if __name__ == '__main__':
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
