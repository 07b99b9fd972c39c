"""Wrong command lines of all commands but a run; {in} is the folder of `malformed_files`."""

from tests.torture.malformed_commands import DPSGD, lines_of
from tests.torture.malformed_flags import HUGE, NETWORK

OF_OTHERS = [
    *lines_of('sweep', (*DPSGD, '--sweep=seed:0..1'), f"""
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
        --sweep=partition_file:a/p.json,b/p.json
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
    *lines_of('sweep', DPSGD, '(nothing)'),
    *lines_of('tables', (), """
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
    *lines_of('report', (), """
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
    *lines_of('select', ('--noprogress',), """
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
    *lines_of('theory', NETWORK, """
        --algorithm=dpsgd
        --loss=mse
        --loss=nonsense
        --nontk_averaging
        --ntk_batches=2
        --ntk_subsampling=2
        --message_bits=8
        --ntk_jacobian_weights=neighbours
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
    *lines_of('reconstruct', ('--noprogress', '--attack_steps=2', '--attack_training=0'), f"""
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
        --sent=nonsense
        --batch_size=2
        --sent=gradient --batch_size=3
        --sent=gradient --batch_size={HUGE}
        --sent=gradient --dp_clip=nan
        --sent=gradient --dp_clip=0
        --sent=gradient --dp_noise_multiplier=-1
        --sent=gradient --attack_projection=5
        reconstruct
    """),
]  # fmt: skip
