"""Wrong flags of a run, written by hand; {in} is the folder of `malformed_files`."""

from tests.refused_flags import REFUSED
from tests.torture.malformed_flags import HUGE, IMAGES, NETWORK, TABULAR
from tests.torture.processes import Command


def lines_of(name: str, base: tuple[str, ...], lines: str) -> list[Command]:
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
SPARK = ('--algorithm=spark', '--spark_projection_dim=20', '--spark_warmup=1', *NETWORK)

OF_A_RUN = [
    *(
        refused
        for base, rows in REFUSED.items()
        for refused in lines_of(
            'run', (TABULAR[0], '--noprogress', *base), '\n'.join(flags for flags, *_ in rows)
        )
    ),
    *lines_of('run', DPSGD, f"""
        --
        --nonsense=1
        --no
        --clients
        --clients=30000 --dataset=digits --topology=complete
        --clients=3000 --dataset=digits
        --clients=121 --topology=ring
        --clients=1 --degree=1
        --clients=2 --degree=2
        --rounds={HUGE}
        --rounds=2147483648
        --topology=torus --torus_dimensions=0
        --topology=configuration --degree_exponent=0.5
        --topology=configuration --degree_exponent=1e300
        --topology=ring --assortativity=0.3
        --topology_file=absent.txt
        --topology=erdos_renyi --degree=1000
        --topology=barabasi_albert --degree=7
        --topology=two_group --degree=9
        --partition=shards --shards_per_client=0
        --partition=balanced --samples_per_client=0
        --alpha=1e308
        --train_samples=121
        --train_samples=5
        --test_samples=0
        --validation_share=1
        --client_dropout=1.0001
        --dataset=mnist --data_dir=/dev/null
        --dataset=image_folder
        --dataset=image_folder --data_dir=absent
        --dataset=so2sat --data_dir={{in}}/empty
        --dataset=leaf
        --dataset=leaf --data_dir=absent
        --dataset=leaf --data_dir={{in}}/images-good
        --dataset=sonnets
        --dataset=absent.txt --task=next_token
        --dataset={{in}}/binary.txt --task=next_token
        --dataset={{in}}/table.csv
        --dataset={{in}}/table.csv --columns=target=z
        --dataset={{in}}/table.csv --columns=target=a,target=b
        --dataset={{in}}/table.csv --columns=target=y,client=a --partition=natural --clients=121
        --dataset={{in}}/table.csv --columns=target=y --partition=natural
        --dataset=absent.parquet --columns=target=y
        --dataset=os:getcwd
        --dataset=absent.module:f
        --feature_shift=noise:-1
        --feature_shift=quarter_turns
        --partition=natural
        --partition=lognormal --lognormal_sigma=0
        --data_dir=absent
        --image_size=32
        --model=cnn
        --model=vgg
        --model=math:sin
        --model=os:getcwd
        --hidden=1000000000000
        --hidden=100000,100000,100000
        --algorithm=os:
        --algorithm=..:f
        --algorithm=os:getcwd
        --algorithm=builtins:print
        --algorithm=builtins:dict
        --local_steps=0
        --local_epochs={HUGE}
        --lr=1e400
        --clip_norm=0
        --gossip_steps=0
        --optimizer=adamw --momentum=0.5
        --init=same --gain=size
        --gain_polled=3
        --spark_warmup=1
        --dfml_alpha=0.5
        --architectures=cnn-4
        --senders=2
        --devices=0
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
        --flagfile={{in}}/empty
        --flagfile={{in}}/binary
        --flagfile={{in}}/self.flags
        --flagfile={{in}}/unknown.flags
        --flagfile={{in}}/free.flags
        --wandb --wandb_project=/
    """),
    *lines_of('run', SPARK, """
        --spark_projection_dim=100000
        --spark_sampling=1.1
        --spark_schedule_rounds=1
        --spark_alpha_init=1.5
        --spark_tau_init=0
        --ntk_jacobian_weights=neighbours
        --momentum=1.5
    """),
    *lines_of('run', ('--algorithm=dfml', *IMAGES), """
        --senders=0
        --senders=7
        --aggregators=0
        --aggregators=7
        --architectures=cnn
        --architectures=cnn-0
        --architectures=cnn--4
        --architectures=vit-512-513
        --architectures=efficientnet-b9
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
]  # fmt: skip
