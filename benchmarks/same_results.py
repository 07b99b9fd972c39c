"""Do two checkouts compute the same?

    python -m benchmarks.same_results --before=DIR

Runs the commands of RUNS and COMMANDS in a checkout of an earlier commit and in this one, and
compares what they write bit for bit: every row of metrics.jsonl, the weights of the trained model,
and the tables and numbers of the other commands. Times and digests are left out. Prints
one line a setting; ends with status 1 where one differs.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

_BEFORE = flags.DEFINE_string(
    'before', None, 'a checkout of the earlier commit (`git worktree add DIR COMMIT`)'
)
_AFTER = flags.DEFINE_string('after', '.', 'the other checkout')
_KEEP = flags.DEFINE_string(
    'keep', None, 'where results go and are taken from again, one folder a checkout'
)
_ONLY = flags.DEFINE_string('only', '', 'settings whose name contains it')

UNEQUAL = ('seconds', 'digest', 'wall', 'commit')  # what differs from run to run

SMALL = '--dataset=digits --train_samples=240 --test_samples=100 --clients=6 --degree=2 --rounds=2'
RING = SMALL.replace('--degree=2', '--topology=ring')
WIDE = f'{SMALL} --clients=8 --degree=3 --devices=1'
MANY = SMALL.replace('--degree=2 ', '')
CLOCKS = '--static_topology --round_seconds=1 --world=speed=lognormal:1e9:1,uplink=1e7'
PEERS = f'{MANY} --architectures=cnn-4-8,cnn-8-16 --validation_share=0.2 --dfml_width=1'
ALIKE = f'{MANY} --architectures=cnn-4-8 --validation_share=0.2'

RUNS = {  # name -> method and flags of `experiments.run`
    'ntk_dfl': f'ntk_dfl {SMALL}',
    'ntk_dfl batches': f'ntk_dfl {WIDE} --ntk_batches=2 --ntk_subsampling=2 --link_dropout=0.3 '
    '--client_dropout=0.2 --lr_decay=0.07',
    'ntk_dfl compressed': f'ntk_dfl {SMALL} --message_sparsity=0.25 --message_bits=7',
    'ntk_dfl own': f'ntk_dfl {SMALL} --ntk_jacobian_weights=neighbours --nontk_averaging',
    'ntk_dfl mse': f'ntk_dfl {SMALL} --loss=mse --evolution=eigh --timestep_selection=linearized '
    '--ntk_timesteps=50,100 --kernel=output_scan',
    'ntk_dfl clusters': f'ntk_dfl {SMALL} --topology=clustered',
    'ntk_dfl gain': f'ntk_dfl {SMALL} --topology=watts_strogatz --static_topology '
    '--init=gain_corrected --rounds=24 --eval_every=12 --ntk_timesteps=100',
    'ntk_fl': f'ntk_fl {MANY} --ntk_fl_cohort=3 --client_dropout=0.2',
    'spark': f'spark {SMALL} --spark_schedule_rounds=2 --spark_warmup=1',
    'spark gaussian': f'spark {SMALL} --spark_projection=gaussian --spark_projection_dim=50 '
    '--spark_exchange=int8 --spark_sampling=0.5 --spark_schedule_rounds=2',
    'spark trace': f'spark {SMALL} --spark_kernel=trace --spark_projection=none --spark_step=exact '
    '--spark_projection_refresh=round --spark_schedule_rounds=2',
    'spark sign': f'spark {SMALL} --spark_projection=sparse_sign --spark_exchange=float16 '
    '--hidden=20,10 --spark_tau_final=2 --spark_schedule_rounds=2',
    'dpsgd': f'dpsgd {SMALL} --round_order=parallel --local_steps=1 --diagnostics',
    'dfedavg': f'dfedavg {SMALL} --message_sparsity=0.5 --message_bits=6 --gossip_steps=2',
    'dfedavg model': f'dfedavg {SMALL} --model=cnn --optimizer=adamw --lr=0.001 '
    '--augmentation=standard --clip_norm=1 --topology=barabasi_albert',
    'dfedavgm': f'dfedavgm {SMALL} --topology=watts_strogatz --mixing=metropolis '
    '--client_dropout=0.3 --weight_decay=0.001',
    'dfedsam': f'dfedsam {RING} --sam_adaptive',
    'decavg': f'decavg {SMALL} --init=gain_corrected --gain=push_sum',
    'dispfl': f'dispfl {SMALL} --consensus=intersection --dispfl_regrow=random --partition=shards',
    'dfml': f'dfml {PEERS} --dfml_mutual_epochs=2',
    'dfml annealed': f'dfml {PEERS} --dfml_schedule=annealed --dfml_transfer=vanilla '
    '--dfml_teachers=equal --dfml_weighted_samples --aggregator=walk --supervision=ace '
    '--dfml_mutual_epochs=1',
    'dec_fedavg': f'dec_fedavg {PEERS} --dec_fedavg_server',
    'dec_fedprox': f'dec_fedprox {ALIKE} --fedprox_mu=0.1',
    'def_kt': f'def_kt {ALIKE} --topology=ring',
    'dec_fed_dropout': f'dec_fed_dropout {PEERS}',
    'dec_heterofl': f'dec_heterofl {PEERS} --senders=4 --aggregators=2',
    'dec_fedrolex': f'dec_fedrolex {PEERS} --partial_channels=sorted',
    'dec_fml': f'dec_fml {PEERS} --fml_meme=cnn-4-8',
    'dsgt': f'dsgt {SMALL}',
    'sgp': f'sgp {MANY} --topology=exponential',
    'epidemic': f'epidemic {SMALL}',
    'qg_dsgdm': f'qg_dsgdm {SMALL}',
    'd2': f'd2 {RING} --lazy',
    'relay_sgd': f'relay_sgd {MANY} --topology=line --static_topology',
    'choco_sgd': f'choco_sgd {RING} --static_topology --message_sparsity=0.5 --message_bits=6',
    'beer': f'beer {RING} --static_topology --message_bits=6',
    'dfed_admm': f'dfed_admm {SMALL}',
    'dfed_alt': f'dfed_alt {SMALL}',
    'ad_psgd': f'ad_psgd {RING} {CLOCKS}',
    'gossip_learning': f'gossip_learning {RING} {CLOCKS}',
    'swift': f'swift {RING} {CLOCKS}',
    'divshare': f'divshare {RING} {CLOCKS}',
}
TRAINED = f'run --algorithm=dfedavg {SMALL} --out={{out}}/run'
COMMANDS = {  # name -> commands, `experiments.` left out; {out} is the folder of the setting
    name: f'run --algorithm={flags} --out={{out}}/run' for name, flags in RUNS.items()
} | {
    'sweep': f'sweep --sweep=seed:0..1 --sweep=lr:0.05,0.1 --algorithm=dpsgd {SMALL} --out={{out}}',
    'select': f'{TRAINED}; select --run={{out}}/run --noprogress',
    'theory': f'theory --algorithm=ntk_dfl {SMALL} --out={{out}}/theory',
    'reconstruct': 'reconstruct --images=1 --attack_steps=5 --attack_restarts=1 '
    '--attack_training=5 --attack_known=10 --out={out}/reconstruct',
    'tables': 'tables ntk_dfl/figure3 --runs=docs/results/ntk_dfl-figure3.json --out={out}',
    'tables computed': 'tables init_topology/stabilisation --out={out}',
    'report': f'{TRAINED}; report --runs={{out}}',
}


def results_of(checkout: Path, name: str, keep: Path | None) -> dict[str, Any]:
    """What a setting writes: file -> its content without what differs from run to run."""
    with tempfile.TemporaryDirectory() as scratch:
        out = (keep or Path(scratch)) / name.replace(' ', '-')
        finished = out / 'finished'
        if not finished.exists():
            out.mkdir(parents=True, exist_ok=True)
            for command in COMMANDS[name].format(out=out).split(';'):
                module, *arguments = shlex.split(command)
                if module in ('run', 'sweep'):
                    arguments.append('--noprogress')
                done = subprocess.run(
                    [sys.executable, '-m', f'experiments.{module}', *arguments],
                    cwd=checkout,
                    env=os.environ | {'PYTHONPATH': str(checkout)},
                    capture_output=True,
                    encoding='utf-8',
                    check=False,
                )
                if done.returncode:
                    return {'failed': f'{command}: {done.stderr.strip().splitlines()[-1:]}'}
                if module == 'tables':
                    text = done.stdout.replace(str(out), 'OUT')
                    (out / f'{module}.md').write_text(text, encoding='utf-8')
            finished.touch()
        return {
            str(path.relative_to(out)): _content(path)
            for path in sorted(out.rglob('*'))
            if path.suffix in ('.jsonl', '.json', '.md', '.safetensors')
            and 'checkpoints' not in path.parts
            and path.name != 'config.json'
        }


def _content(path: Path) -> Any:
    if path.suffix == '.safetensors':
        return path.read_bytes().hex()
    if path.suffix == '.jsonl':
        lines = path.read_text(encoding='utf-8').splitlines()
        return [json.loads(line, object_hook=_plain) for line in lines]
    if path.suffix == '.json':
        return json.loads(path.read_text(encoding='utf-8'), object_hook=_plain)
    return [line for line in path.read_text(encoding='utf-8').splitlines() if line.startswith('|')]


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """An object of JSON without what differs from run to run."""
    return {key: item for key, item in found.items() if not any(part in key for part in UNEQUAL)}


def difference(before: Any, after: Any) -> str | None:
    """The first place at which the two differ, None where they are equal."""
    # As JSON, in which a NaN is equal to itself
    old, new = (
        {
            jax.tree_util.keystr(place): json.dumps(value)
            for place, value in jax.tree_util.tree_leaves_with_path(each, lambda v: v is None)
        }
        for each in (before, after)
    )
    for place in old | new:
        was, now = old.get(place, 'nothing'), new.get(place, 'nothing')
        if was != now:
            return f'{place}: {was[:60]} before, {now[:60]} after'
    return None


def main(argv: list[str]) -> int:
    del argv
    folders = {'before': Path(_BEFORE.value or '').resolve(), 'after': Path(_AFTER.value).resolve()}
    chosen = [name for name in COMMANDS if _ONLY.value in name]
    differing = 0
    for name in chosen:
        before, after = (
            results_of(folder, name, Path(_KEEP.value, side).resolve() if _KEEP.value else None)
            for side, folder in folders.items()
        )
        unlike = before.get('failed') or after.get('failed') or difference(before, after)
        differing += bool(unlike)
        print(f'{name:20} {unlike or f"equal, {len(before)} files"}', flush=True)
    print(f'{len(chosen) - differing} of {len(chosen)} equal')
    return int(differing > 0)


if __name__ == '__main__':
    flags.mark_flag_as_required('before')
    app.run(main)
