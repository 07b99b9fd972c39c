"""Runs that are given the files of `malformed_files`, whose folder {in} is."""

from tests.torture.malformed_commands import DPSGD, lines_of
from tests.torture.malformed_files import EDGES, PARTITIONS
from tests.torture.malformed_flags import IMAGES, NETWORK, TABULAR
from tests.torture.processes import Command

DATASETS = (
    *('keys', 'objects', 'nan', 'inf', 'label-huge', 'label-negative', 'label-uint64'),
    *('label-beyond', 'label-float', 'label-matrix', 'rows-none', 'rows-differ', 'features-none'),
    *('features-differ', 'text', 'complex', 'scalar', 'cut', 'test-none', 'pickle'),
    *('bool', 'header', 'zip', 'test-label', 'fifo', 'folder'),
)
FOLDERS = ('no-rows', 'negative', 'cut-gz', 'not-gz', 'magic', 'huge', 'labels-few', 'label-200')
PICTURES = ('fifo', 'broken', 'no-classes', 'empty-class', 'strangers', 'one', 'flat', 'folder')
MODULES = (
    *('syntax:make', 'raises:make', 'exits:make', 'interrupts:make', 'good:absent', 'good:number'),
    *('good:no_arguments', 'good:returns_none', 'good:returns_number', 'good:raises', 'good:exits'),
    *('good:raises_in_init', 'good:raises_in_step', 'good:keyword'),
)

OF_FILES = [
    *lines_of('run', DPSGD, '\n'.join(
        f'--partition_file={path}'
        for path in (
            *(f'{{in}}/partition-{name}.json' for name in PARTITIONS),
            *('absent.json', '{in}/empty', '{in}/binary', '{in}/fifo', '/dev/zero', ''),
        )
    )),
    *lines_of('run', DPSGD, '\n'.join(
        f'--topology=edge_list --topology_file={path}'
        for path in (
            *('absent', '{in}/empty', '{in}/binary', '{in}/fifo', '{in}/empty.json'),
            *('{in}/deep.json', '/dev/zero', *(f'{{in}}/edges-{name}' for name in EDGES)),
        )
    )),
    *lines_of('run', ('--algorithm=dfml', *IMAGES), '\n'.join(
        f'--architecture_file={path}'
        for path in (
            *('{in}/empty', '{in}/binary', '{in}/fifo', '{in}/empty.json', '{in}/deep.json'),
            *('{in}/architectures-few', '{in}/architectures-unknown', '/dev/zero'),
        )
    )),
    *lines_of('run', DPSGD, '\n'.join(f'--dataset={{in}}/{name}.npz' for name in DATASETS)),
    *lines_of('run', DPSGD, '\n'.join(
        f'--dataset=mnist --data_dir={{in}}/idx-{name}' for name in FOLDERS
    )),
    *lines_of('run', DPSGD, '\n'.join(
        f'--dataset=image_folder --image_size=8 --data_dir={{in}}/images-{name}'
        for name in PICTURES
    )),
    *(Command('run', (f'--algorithm=bad_{name}', *NETWORK)) for name in MODULES),
    *(Command('run', ('--algorithm=dpsgd', f'--model=bad_{name}', *TABULAR)) for name in MODULES),
]  # fmt: skip
