"""Wrong command lines, written by hand; {in} is the folder of `malformed_files`."""

from tests.torture.malformed_flags import HUGE, IMAGES, NETWORK, TABULAR
from tests.torture.processes import Command


def _of(name: str, base: tuple[str, ...], lines: str) -> list[Command]:
    """A command a line, each the base and its own flags, which take the place of the base's."""
    found = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        own = [] if line == '(nothing)' else line.split(' ')
        given = {flag.split('=')[0] for flag in own}
        if '--topology' in given:
            given.add('--degree')
        kept = (flag for flag in base if flag.split('=')[0] not in given)
        found.append(Command(name, (*kept, *own)))
    return found


DPSGD = ('--algorithm=dpsgd', *NETWORK)

BY_HAND = [
    *_of('run', DPSGD, f"""
        digits
        --
        --nonsense=1
        --noprogress=1
        --no
        --clients
        --clients=30000 --dataset=digits --topology=complete
        --clients=3000 --dataset=digits
        --clients=121 --topology=ring
        --clients=0
        --clients=1 --degree=1
        --clients=2 --degree=2
        --clients=7 --degree=3
        --degree=0
        --degree=6
        --rounds=0
        --rounds=30000000
        --rounds={HUGE}
        --rounds=2147483648
        --eval_every=0
        --topology=torus --clients=7
        --topology=torus --torus_dimensions=1000000
        --topology=torus --torus_dimensions=0
        --topology=watts_strogatz --degree=3
        --topology=configuration --degree_exponent=0.5
        --topology=configuration --degree_exponent=1e300
        --topology=edge_list
        --topology=ring --degree=2
        --topology=ring --assortativity=0.3
        --topology_file=absent.txt
        --assortativity=0.3
        --topology=erdos_renyi --assortativity=2
        --topology=erdos_renyi --degree=1000
        --topology=barabasi_albert --degree=7
        --topology=two_group --degree=9
        --partition=iid --alpha=0.3
        --partition=iid --partition_overlap
        --partition=zipf --zipf_exponent=1e300
        --partition=shards --shards_per_client=99
        --partition=shards --shards_per_client=0
        --partition=balanced --samples_per_client=25
        --partition=balanced --samples_per_client=0
        --partition=writer
        --alpha=0
        --alpha=1e-320
        --alpha=1e308
        --train_samples=0
        --train_samples=121
        --train_samples=5
        --test_samples=0
        --test_samples=41
        --client_eval_samples=0
        --client_eval_samples=41
        --input_projection=0
        --input_projection=99
        --validation_share=0.2
        --validation_share=1
        --link_dropout=1.5
        --client_dropout=1.0001
        --client_isolation=2
        --dataset=absent.npz
        --dataset=mnist --data_dir=absent
        --dataset=mnist --data_dir=/dev/null
        --dataset=image_folder
        --dataset=image_folder --data_dir=absent
        --dataset=so2sat --data_dir={{in}}/empty
        --data_dir=absent
        --image_size=32
        --model=cnn
        --model=vgg
        --model=math:sin
        --model=os:getcwd
        --hidden=8,0
        --hidden=1000000000000
        --hidden=100000,100000,100000
        --algorithm=adam
        --algorithm=absent.module:f
        --algorithm=math:pi
        --algorithm=math:absent
        --algorithm=:f
        --algorithm=os:
        --algorithm=..:f
        --algorithm=os:getcwd
        --algorithm=builtins:print
        --algorithm=builtins:dict
        --local_epochs=1 --local_steps=1
        --local_epochs=0
        --local_steps=0
        --local_epochs={HUGE}
        --batch_size=0
        --lr=1e400
        --momentum=1
        --clip_norm=0
        --weight_bits=1
        --weight_bits=33
        --weight_sparsity=1
        --weight_rounding=nearest
        --gossip_steps=0
        --settling_rounds=3
        --optimizer=adamw --momentum=0.5
        --chunk=0
        --init=gain_corrected
        --init=same --gain=size
        --gain_polled=3
        --ntk_batches=2
        --spark_warmup=1
        --dfml_alpha=0.5
        --architectures=cnn-4
        --senders=2
        --seed=-1
        --devices=0
        --devices=100000
        --devices=3.0
        --distributed=nonsense
        --distributed=localhost:1,5
        --distributed=localhost:1,a,b
        --distributed=localhost:1,3,2
        --resume
        --resume --out=absent
        --resume --out={{in}}/empty
        --resume --out=/dev/null
        --out=/dev/null
        --out=/dev/null/run
        --out={{in}}/empty.json
        --out={{in}}/empty.json/run
        --out={{in}}
        --out=/proc/run
        --out={'x' * 300}
        --flagfile=absent.flags
        --flagfile={{in}}/empty
        --flagfile={{in}}/binary
        --flagfile={{in}}/self.flags
        --flagfile={{in}}/unknown.flags
        --flagfile={{in}}/free.flags
        --flagfile=
        --wandb --wandb_project=/
    """),
    *_of('run', NETWORK, """
        --batch_size=5
        --evolution=rk4
        --evolution=eigh
        --kernel=rbf
        --ntk_timesteps=20,10
        --ntk_timesteps=0
        --ntk_timesteps=10,10
        --ntk_batches=1000
        --ntk_subsampling=1000
        --ntk_jacobian_sparsity=1
        --ntk_jacobian_bits=33
        --ntk_jacobian_rounding=nearest
        --ntk_by_cluster
        --topology=clustered --link_dropout=0.5
        --topology=clustered --nontk_averaging
        --lr=-0.1
    """),
    *_of('run', ('--algorithm=spark', '--spark_projection_dim=20', '--spark_warmup=1', *NETWORK), """
        --spark_projection_dim=100000
        --spark_projection_dim=0
        --spark_projection=none
        --spark_sampling=0
        --spark_sampling=1.1
        --spark_warmup=2
        --spark_schedule_rounds=0
        --spark_schedule_rounds=1
        --spark_alpha_init=1.5
        --spark_tau_init=0
        --spark_exchange=int4
        --ntk_jacobian_weights=own
        --momentum=1.5
    """),
    *_of('run', ('--algorithm=ntk_fl', '--hidden=8', *TABULAR), """
        --ntk_fl_cohort=7
        --ntk_fl_cohort=0
        --degree=3
        --link_dropout=0.5
    """),
    *_of('run', ('--algorithm=dfml', *IMAGES), """
        --senders=0
        --senders=7
        --aggregators=0
        --aggregators=7
        --architectures=cnn
        --architectures=cnn-0
        --architectures=cnn--4
        --architectures=vit-512-513
        --architectures=efficientnet-b9
        --architectures=resnet-4
        --architectures=cnn-99999999
        --architecture_ratios=1,2
        --architecture_ratios=0
        --architecture_ratios=inf
        --architecture_file=absent
        --dfml_width=0
        --dfml_width=1e300
        --dfml_mutual_epochs=0
        --dfml_alpha=1.5
        --dfml_period=0
        --hidden=8
        --model=mlp
        --init=gain_corrected
        --validation_share=1
        --validation_share=-0.1
        --dataset={in}/tiny.npz
    """),
    *_of('sweep', (*DPSGD, '--sweep=seed:0..1'), f"""
        --sweep=
        --sweep=seed
        --sweep=seed:
        --sweep=:1
        --sweep=seed:1,1
        --sweep=seed:4..2
        --sweep=seed:0..{HUGE}
        --sweep=seed:0..99999999
        --sweep=seed:a,b
        --sweep=seed:0 --sweep=seed:1
        --sweep=nonsense:1,2
        --sweep=out:a,b
        --sweep=lr:nan,0.1
        --sweep=lr:-1,0.1
        --sweep=clients:0,6
        --sweep=topology:regular,mesh
        --sweep=partition_file:a/p.json,b/p.json
        --sweep=algorithm:dpsgd,../../x
        --together=0
        --together=-1
        --together=many
        --shard=2/2
        --shard=a/b
        --shard=0
        --shard=-1/2
        --shard=0/0
        --flagfiles=absent.flags
        --flagfiles={{in}}/binary
        --flagfiles={{in}}/self.flags
        --flagfiles={{in}}/empty
        --flagfiles=a/x.flags,b/x.flags
        --resume
        --nocheckpoint
        --tensorboard
        --out=/dev/null
        --out={{in}}/empty.json
        --out={{in}}/empty.json/sweep
        --alpha=nan
        --nonsense=1
        seed:1
    """),
    *_of('sweep', DPSGD, '(nothing)'),
    *_of('tables', (), """
        (nothing)
        nonsense
        ntk_dfl
        ../..
        ntk_dfl/figure2 dfml/small
        ntk_dfl/figure2 --runs=absent
        ntk_dfl/figure2 --runs={in}/empty
        ntk_dfl/figure2 --runs=
        ntk_dfl/figure2 --runs=/dev/null
        ntk_dfl/figure2 --runs={in}/binary
        ntk_dfl/figure2 --runs=absent.json
        ntk_dfl/figure2 --runs={in}/null.json
        ntk_dfl/figure2 --runs={in}/list.json
        ntk_dfl/figure2 --runs={in}/deep.json
        ntk_dfl/figure2 --runs={in}/curves-number.json
        ntk_dfl/figure2 --runs={in}/curves-null.json
        ntk_dfl/figure2 --runs={in}/curves-text.json
        ntk_dfl/figure2 --runs={in}/curves-ragged.json
        ntk_dfl/figure2 --runs={in}/broken-runs
        ntk_dfl/figure2 --nonsense=1
        init_topology/limits --out=/dev/null/x
    """),
    *_of('report', (), """
        (nothing)
        --runs=
        --runs=absent
        --runs=/dev/null
        --runs={in}/empty
        --runs={in}/binary
        --runs={in}/broken-runs
        --runs={in} --target=nan
        --runs={in} --target=0
        --runs={in} --target=2
        --runs={in} --target=many
        --runs={in} --out={in}/empty
        --runs={in} --out=/dev/null/x
        --runs={in} --out={in}/tiny.npz
        --nonsense=1
        runs
    """),
    *_of('select', ('--noprogress',), """
        (nothing)
        --run=
        --run=absent
        --run=/dev/null
        --run={in}/empty
        --run={in}/broken-runs/dpsgd-iid-null
        --run={in}/broken-runs/dpsgd-iid-list
        --run={in}/broken-runs/dpsgd-iid-deep
        --run={in}/broken-runs/dpsgd-iid-settings
        --run={in}/broken-runs/dpsgd-iid-binary
        --run={in}/broken-runs/dpsgd-iid-folder
        --run={in}/broken-runs/dpsgd-iid-null --target=nan
        --run={in}/broken-runs/dpsgd-iid-null --target=1.5
        --run={in}/broken-runs/dpsgd-iid-null --target=-1
        --run={in}/broken-runs/dpsgd-iid-null --seed=-1
        --run={in}/broken-runs/dpsgd-iid-null --clients=6
        --run={in}/broken-runs/dpsgd-iid-null --nonsense
        runs
    """),
    *_of('theory', NETWORK, """
        --algorithm=dpsgd
        --loss=mse
        --loss=nonsense
        --nontk_averaging
        --ntk_batches=2
        --ntk_subsampling=2
        --ntk_jacobian_bits=8
        --ntk_jacobian_weights=own
        --topology=clustered
        --lr=0
        --lr=nan
        --lr=inf
        --lr=-1
        --lr_decay=nan
        --rounds=0
        --rounds=30000000
        --clients=0
        --alpha=nan
        --tensorboard
        --resume
        --eval_every=2
        --out=/dev/null
        --out={in}/empty.json
        --out={in}
        --dataset=absent.npz
        --batch_size=5
        --seed=-1
        theory
    """),
    *_of('attack', ('--noprogress', '--attack_steps=2', '--attack_training=0'), f"""
        --images=0
        --images=-1
        --images=100000
        --images={HUGE}
        --attack_sparsity=nan
        --attack_sparsity=1
        --attack_sparsity=-0.1
        --attack_sparsity=inf
        --attack_projection=0
        --attack_projection=-1
        --attack_projection=100000
        --attack_smoothness=nan
        --attack_smoothness=inf
        --attack_smoothness=-1
        --attack_steps=0
        --attack_restarts=0
        --attack_restarts={HUGE}
        --attack_training=-1
        --attack_training={HUGE}
        --attack_known=1
        --attack_known=100000
        --seed=-1
        --clients=6
        --lr=0.1
        --dataset=nonsense
        --dataset={{in}}/tiny.npz
        --dataset={{in}}/nan.npz
        --data_dir=absent --dataset=mnist
        --out=/dev/null
        --out=/dev/null/x
        --out={{in}}
        attack
    """),
]  # fmt: skip

PARTITIONS = (
    *('null', 'number', 'text', 'list', 'object', 'empty', 'nested', 'floats', 'texts', 'bools'),
    *('negative', 'beyond', 'huge', 'twice', 'few', 'lonely', 'nan', 'deep', 'deep-objects'),
    *('cut', 'nulls', 'utf16', 'nul-bytes'),
)
DATASETS = (
    *('keys', 'objects', 'nan', 'inf', 'label-huge', 'label-negative', 'label-uint64'),
    *('label-beyond', 'label-float', 'label-matrix', 'rows-none', 'rows-differ', 'features-none'),
    *('features-differ', 'text', 'complex', 'scalar', 'cut', 'one-class', 'test-none', 'pickle'),
    *('bool', 'header', 'zip', 'test-label'),
)
FOLDERS = ('no-rows', 'negative', 'cut-gz', 'not-gz', 'magic', 'huge', 'labels-few', 'label-200')
PICTURES = ('fifo', 'broken', 'no-classes', 'empty-class', 'strangers', 'one', 'flat', 'folder')
MODULES = (
    *('syntax:make', 'raises:make', 'exits:make', 'good:absent', 'good:number', 'good:no_arguments'),
    *('good:returns_none', 'good:returns_number', 'good:raises', 'good:exits', 'good:raises_in_init'),
    *('good:raises_in_step', 'interrupts:make', 'good:keyword'),
)

OF_FILES = [
    *(Command('run', (*DPSGD, f'--partition_file={{in}}/partition-{name}.json')) for name in PARTITIONS),
    *(
        Command('run', (*DPSGD, f'--partition_file={path}'))
        for path in ('absent.json', '{in}/empty', '{in}/binary', '{in}/fifo', '/dev/zero', '')
    ),
    *_of('run', DPSGD, '\n'.join(
        f'--topology=edge_list --topology_file={path}'
        for path in (
            *('absent', '{in}/empty', '{in}/binary', '{in}/fifo', '{in}/empty.json', '{in}/deep.json'),
            *('{in}/edges-loop', '{in}/edges-beyond', '{in}/edges-three', '{in}/edges-negative'),
            *('{in}/edges-float', '{in}/edges-huge', '/dev/zero'),
        )
    )),
    *_of('run', ('--algorithm=dfml', *IMAGES), '\n'.join(
        f'--architecture_file={path}'
        for path in (
            *('{in}/empty', '{in}/binary', '{in}/fifo', '{in}/empty.json', '{in}/deep.json'),
            *('{in}/architectures-few', '{in}/architectures-unknown', '/dev/zero'),
        )
    )),
    *_of('run', DPSGD, '\n'.join(f'--dataset={{in}}/{name}.npz' for name in DATASETS)),
    *_of('run', DPSGD, '\n'.join(f'--dataset={{in}}/{name}.npz' for name in ('fifo', 'folder'))),
    *_of('run', DPSGD, '\n'.join(f'--dataset=mnist --data_dir={{in}}/idx-{n}' for n in FOLDERS)),
    *_of('run', DPSGD, '\n'.join(
        f'--dataset=image_folder --image_size=8 --data_dir={{in}}/images-{name}' for name in PICTURES
    )),
    *(Command('run', (f'--algorithm=bad_{name}', *NETWORK)) for name in MODULES),
    *(Command('run', ('--algorithm=dpsgd', f'--model=bad_{name}', *TABULAR)) for name in MODULES),
]  # fmt: skip
