"""How well losses tell what a model was trained on from other samples."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import write_clusters
from sklearn.metrics import roc_auc_score, roc_curve
from test_sweep import swept

from dfl_jax import Clients, simulate
from dfl_jax.base import Algorithm
from dfl_jax.experiment import Experiment
from dfl_jax.membership import Losses, told_apart
from dfl_jax.setting_error import InputError, SettingError

SMALL = dict(algorithm='dpsgd', clients=6, degree=2, rounds=2, alpha=1.0, hidden=('8',))
NAMES = ('membership_auc', 'membership_tpr')
IN_ROWS = {
    *('membership_auc_mean', 'membership_auc_max', 'membership_tpr_mean'),
    *('membership_auc_consensus', 'membership_tpr_consensus'),
}


@pytest.fixture(scope='module')
def clusters(tmp_path_factory):
    return str(write_clusters(tmp_path_factory.mktemp('data') / 'clusters.npz'))


@pytest.fixture(scope='module')
def numbers(tmp_path_factory):
    """A regression whose targets have two numbers."""
    rng, path = np.random.default_rng(1), tmp_path_factory.mktemp('data') / 'numbers.npz'
    x = rng.normal(size=(160, 5)).astype(np.float32)
    y = (x @ rng.normal(size=(5, 2)) + rng.normal(size=(160, 2))).astype(np.float32)
    np.savez(path, train_x=x[:120], train_y=y[:120], test_x=x[120:], test_y=y[120:])
    return str(path)


def expected(members, others) -> tuple[float, float]:
    """AUC and true positive rate at 1 % false positives, by scikit-learn; none without samples."""
    if not (len(members) and len(others)):
        return np.nan, np.nan
    truth = np.repeat([1, 0], [len(members), len(others)])
    scores = -np.concatenate([members, others])
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    return roc_auc_score(truth, scores), true[false <= 0.01].max()


# -------------------------------------------------------------------------------- of losses alone


@pytest.mark.parametrize('others', [1, 7, 99, 100, 101, 250])
@pytest.mark.parametrize('steps', [3, 1000])  # of losses; few are many ties
def test_losses_are_told_apart_as_scikit_learn_has_it(others, steps):
    rng = np.random.default_rng(others)
    first = np.float32(rng.integers(0, steps, 60) / steps)
    second = np.float32(rng.integers(0, steps, others) / steps + 0.1 * (steps > 3))
    found = told_apart(*(Losses(a, np.ones(len(a), bool)) for a in (first, second)))
    np.testing.assert_allclose(found, expected(first, second), rtol=1e-6)


def test_padding_is_of_no_side():
    rng = np.random.default_rng(0)
    first, second = np.float32(rng.random(20)), np.float32(rng.random(120) + 0.1)
    plain = told_apart(*(Losses(a, np.ones(len(a), bool)) for a in (first, second)))
    for garbage in (-1, 0, 0.5, np.inf, np.nan):
        wide = [
            Losses(np.insert(a, at, garbage), np.insert(np.ones(len(a), bool), at, False))
            for a in (first, second)
            for at in [[0, 3, 3, len(a)]]
        ]
        np.testing.assert_array_equal(told_apart(*wide), plain)


def test_losses_that_overflowed_are_the_highest_and_alike():
    first, second = np.float32([0, 1, np.inf, np.nan]), np.float32([0.5, np.inf, np.nan])
    ones = np.ones(4, bool)
    found = told_apart(Losses(first, ones), Losses(second, ones[:3]))
    np.testing.assert_allclose(found, [(3 + 2 + 1 + 1) / 12, 1 / 4])


def test_many_samples_are_counted_to_the_last():
    """Of 60,000 members and 10,000 others, as the consensus model of MNIST has them."""
    rng = np.random.default_rng(0)
    first, second = np.float32(rng.exponential(size=60000)), np.float32(rng.exponential(size=10000))
    found = told_apart(*(Losses(a, np.ones(len(a), bool)) for a in (first, second)))
    np.testing.assert_allclose(found, expected(first, second), rtol=2e-6)


def test_without_samples_there_is_no_number():
    some, none = (Losses(np.zeros(3, np.float32), np.full(3, there)) for there in (True, False))
    for pair in ((some, none), (none, some)):
        assert np.isnan(told_apart(*pair)).all()
    np.testing.assert_array_equal(told_apart(some, some), [0.5, 0])  # all alike


# ------------------------------------------------------------------------------------- of a run


def rows_of(folder, name='metrics'):
    return [json.loads(line) for line in (folder / f'{name}.jsonl').read_text().splitlines()]


def losses_of(task, outputs, y) -> np.ndarray:
    return np.asarray(task.losses(jnp.asarray(outputs), jnp.asarray(y)))


def check_last(run, folder, rounds) -> None:
    """The numbers of the last evaluation are those that NumPy finds from the models of the run."""
    built, row, clients = run.built, rows_of(folder)[-1], rows_of(folder, 'clients')[-1]
    method, task, state = built.algorithm, built.algorithm.task, run.state
    judged = np.ones(len(built.parts), bool) if built.judged is None else built.judged

    def own(samples: Clients, arrived: bool) -> tuple[list, list]:
        """The losses of each client's samples by its own model, and by the consensus model."""
        mask = np.array(samples.mask)
        if arrived and samples.arrival is not None:
            mask &= np.asarray(samples.arrival) < rounds
        x = jnp.asarray(samples.x)
        outputs = np.asarray(jax.jit(method.predict_own)(state, x))
        of_all = predict(state, x.reshape(-1, *x.shape[2:]), weights)['consensus']
        whole = np.split(np.asarray(of_all), len(x))
        pairs = zip(outputs, whole, samples.y, mask, strict=True)
        each = [(losses_of(task, o, y)[m], losses_of(task, w, y)[m]) for o, w, y, m in pairs]
        return [mine for mine, _ in each], [theirs for _, theirs in each]

    weights = None if built.judged is None else jnp.float32(judged)
    predict = jax.jit(method.predict)
    members, of_all = own(built.clients, arrived=True)
    if built.validation is not None:
        others, more = own(built.validation, arrived=False)
        kept = np.concatenate([m for m, counts in zip(more, judged, strict=True) if counts])
    else:
        outputs = predict(state, jnp.asarray(built.test.x), weights)
        kept = losses_of(task, outputs['consensus'], built.test.y)
        chosen = slice(None) if built.evaluated is None else built.evaluated
        others = [losses_of(task, o, built.test.y)[chosen] for o in outputs['client']]
    wanted = np.array([expected(*pair) for pair in zip(members, others, strict=True)])
    for name, values in zip(NAMES, wanted.T, strict=True):
        found = [np.nan if v is None else v for v in clients[name]]
        np.testing.assert_allclose(found, values, atol=2e-5, err_msg=name)
    auc, tpr = wanted[judged].T
    assert row['membership_auc_mean'] == pytest.approx(np.nanmean(auc), abs=2e-5)
    assert row['membership_auc_max'] == pytest.approx(np.nanmax(auc), abs=2e-5)
    assert row['membership_tpr_mean'] == pytest.approx(np.nanmean(tpr), abs=2e-5)
    trained = np.concatenate([m for m, counts in zip(of_all, judged, strict=True) if counts])
    found = [row[f'{name}_consensus'] for name in NAMES]
    np.testing.assert_allclose(found, expected(trained, kept), atol=2e-5)


RUNS = {
    'the test set': {},
    'a choice of the test set': {'client_eval_samples': 12},
    'kept samples': {'validation_share': 0.3},
    'some keep nothing': {'validation_share': 0.04, 'alpha': 0.1},
    'arrival': {'arrival': 'linear:6'},
    'some have nothing yet': {'arrival': 'class_by_class:6', 'alpha': 0.05},
    'attackers': {'attackers': '2', 'attack': 'sign_flip'},
    'poisoned samples': {'attackers': '2', 'attack': 'label_flip', 'validation_share': 0.3},
    'the size of the clients counts': {'algorithm': 'ntk_dfl', 'ntk_timesteps': ('3', '8')},
    'without rounds': {
        **{'algorithm': 'swift', 'round_seconds': 0.02},
        'world': 'speed=lognormal:1e7:0.5,uplink=1e6,latency=0.01',
    },
    'sent in few bits': {'message_bits': 8, 'message_error_feedback': True},
}


@pytest.mark.parametrize('name', RUNS)
def test_a_run_reports_what_numpy_finds_from_its_models(name, clusters, tmp_path):
    settings = SMALL | {'dataset': clusters} | RUNS[name]
    run = Experiment.of(**settings, membership=True).run(tmp_path / 'run', progress=False)
    assert run.last().keys() >= IN_ROWS
    check_last(run, tmp_path / 'run', SMALL['rounds'])


def test_numbers_are_told_apart_by_their_squared_errors(numbers, tmp_path):
    settings = SMALL | {'dataset': numbers, 'task': 'regression', 'partition': 'iid', 'lr': 0.01}
    del settings['alpha']
    run = Experiment.of(**settings, membership=True).run(tmp_path / 'run', progress=False)
    run.last()
    check_last(run, tmp_path / 'run', SMALL['rounds'])


def test_texts_are_told_apart_by_the_mean_loss_of_their_tokens(tmp_path):
    (tmp_path / 'text.txt').write_text('A rose is a rose is a rose. ' * 30)
    settings = dict(dataset=f'{tmp_path}/text.txt', task='next_token', model='gru', text_window=8)
    settings |= dict(algorithm='dpsgd', clients=3, degree=2, rounds=2, partition='iid')
    run = Experiment.of(**settings, membership=True).run(tmp_path / 'run', progress=False)
    run.last()
    check_last(run, tmp_path / 'run', 2)


def test_clients_of_several_architectures(tmp_path):
    settings = dict(algorithm='dfml', architectures=('cnn-2', 'cnn-3'), clients=4, rounds=2)
    settings |= dict(dataset='digits', train_samples=120, test_samples=40, alpha=1.0)
    run = Experiment.of(**settings, membership=True).run(tmp_path / 'run', progress=False)
    run.last()
    assert run.built.validation is not None  # by default
    check_last(run, tmp_path / 'run', 2)


def test_several_batches_are_as_one(clusters, tmp_path, monkeypatch):
    """In batches whose last is padded; the consensus model of attackers' neighbours."""
    monkeypatch.setattr('dfl_jax.evaluation._chunk', lambda *_: 7)
    settings = SMALL | {'dataset': clusters, 'attackers': '1', 'attack': 'zero'}
    for share in (0, 0.3):
        folder = tmp_path / str(share)
        run = Experiment.of(**settings, validation_share=share, membership=True)
        run = run.run(folder, progress=False)
        run.last()
        check_last(run, folder, SMALL['rounds'])


@pytest.mark.parametrize('share', [0, 0.3])
def test_devices_that_do_not_divide_the_clients(share, clusters, tmp_path):
    settings = SMALL | {'dataset': clusters, 'clients': 5, 'validation_share': share}
    found = []
    for devices in ('1', '4'):
        run = Experiment.of(**settings, devices=devices, membership=True)
        run.run(tmp_path / devices, progress=False).last()
        of_clients = rows_of(tmp_path / devices, 'clients')[-1]
        row = rows_of(tmp_path / devices)[-1]
        found.append([row[name] for name in sorted(IN_ROWS)] + of_clients['membership_auc'])
        assert len(of_clients['membership_tpr']) == 5
    np.testing.assert_allclose(*found, atol=2e-5)


def test_runs_of_a_sweep_report_what_each_reports_alone(clusters, tmp_path):
    argv = f'--dataset={clusters} --algorithm=dpsgd --clients=6 --degree=2 --rounds=2 --hidden=8'
    argv += ' --membership --client_eval_samples=12 --alpha=1'
    swept(*argv.split(), '--sweep=seed:0..1', f'--out={tmp_path}').succeeded()
    for seed in (0, 1):
        settings = SMALL | {'dataset': clusters, 'client_eval_samples': 12, 'seed': seed}
        alone = Experiment.of(**settings, membership=True).run(progress=False).last()
        row = rows_of(tmp_path / f'seed={seed}')[-1]
        for name in IN_ROWS:
            assert row[name] == pytest.approx(alone[name], abs=2e-5), name


def test_without_it_there_is_nothing_of_it_and_no_bit_is_another(clusters, tmp_path):
    settings = SMALL | {'dataset': clusters, 'client_eval_samples': 12}
    of_runs = []
    for membership in (False, True):
        folder = tmp_path / str(membership)
        Experiment.of(**settings, membership=membership).run(folder, progress=False).last()
        of_runs.append((*rows_of(folder), *rows_of(folder, 'clients')))
    for off, on in zip(*of_runs, strict=True):
        assert not any('membership' in name for name in off)
        assert on.keys() - off.keys() in (IN_ROWS, {*NAMES})
        for name in off.keys() - {'seconds', 'digest'}:
            assert off[name] == on[name], name


# --------------------------------------------------------------------------------- what it tells


def write_noise(path, train=60, test=200, same=False):
    """Labels that nothing in the inputs says; same: the test has those of training, and others."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(train + test, 20)).astype(np.float32)
    y = rng.integers(4, size=train + test)
    if same:
        x[train:] = np.resize(x[:train], (test, 20))
        y[train:] = (np.resize(y[:train], test) + 1) % 4
    np.savez(path, train_x=x[:train], train_y=y[:train], test_x=x[train:], test_y=y[train:])
    return str(path)


def test_what_is_learnt_by_heart_is_told_apart_and_nothing_is_before(tmp_path):
    noise, same = (write_noise(tmp_path / f'{n}.npz', same=n) for n in (False, True))
    settings = dict(algorithm='dpsgd', clients=3, degree=2, partition='iid', hidden=('200',))
    learnt = dict(rounds=30, local_epochs=20, batch_size=20, lr=0.3, eval_every=30)

    def last(**more):
        return Experiment.of(**settings, **more, membership=True).run(progress=False).last()

    by_heart = last(dataset=noise, **learnt)
    assert by_heart['membership_auc_mean'] > 0.95 and by_heart['membership_auc_consensus'] > 0.95
    # A quarter of the noise is guessed with as low a loss, so that few are found for sure
    found = last(dataset=same, **learnt)
    assert found['membership_tpr_mean'] > 0.95 and found['membership_tpr_consensus'] > 0.95
    before = last(dataset=noise, rounds=1, lr=1e-9)
    # Of 20 and of 60 members and 200 others; standard deviations of 0.07 and 0.04
    assert abs(before['membership_auc_mean'] - 0.5) < 0.12
    assert abs(before['membership_auc_consensus'] - 0.5) < 0.12
    assert before['membership_tpr_mean'] < 0.15


# ------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ('more', 'setting', 'said'),
    [
        ({'algorithm': 'ntk_fl', 'degree': None}, 'membership', 'ntk_fl .* leave it out'),
        (
            {'partition_overlap': True, 'validation_share': 0.3},
            *('membership', 'trains on .*validation_share=0'),
        ),
    ],
)
def test_what_it_has_no_meaning_for_is_refused_in_a_line(more, setting, said, clusters):
    settings = {n: v for n, v in (SMALL | more).items() if v is not None}
    with pytest.raises(SettingError, match=said) as caught:
        Experiment.of(**settings, dataset=clusters, membership=True).build()
    assert caught.value.setting == setting and '\n' not in str(caught.value)


def test_clients_that_keep_nothing_have_no_others(clusters, tmp_path):
    (tmp_path / 'parts.json').write_text(json.dumps([[0], [1], [*range(2, 60)]]))
    (tmp_path / 'chosen.json').write_text('[0, 1]')
    settings = dict(algorithm='dpsgd', clients=3, degree=2, rounds=1, dataset=clusters)
    settings |= dict(partition_file=f'{tmp_path}/parts.json', validation_share=0.2)
    chosen = {'evaluate_clients': f'{tmp_path}/chosen.json'}
    with pytest.raises(SettingError, match=r'no sample .* raise it') as caught:
        Experiment.of(**settings, **chosen, membership=True).build()
    assert caught.value.setting == 'validation_share'
    Experiment.of(**settings, membership=True).build()


def test_python_is_told_that_a_method_has_no_models_of_clients(clusters):
    built = Experiment.of(**SMALL, dataset=clusters).build()
    method: Algorithm = built.algorithm._replace(predict_own=None)
    arguments = (method, built.clients, built.graphs, built.test, jax.random.key(0))
    with pytest.raises(InputError, match='membership'):
        next(simulate.run(*arguments, membership=True))


def test_nothing_is_compiled_after_the_first_evaluation(clusters):
    built = Experiment.of(**SMALL | {'rounds': 3}, dataset=clusters, arrival='linear:3').build()
    arguments = (built.algorithm, built.clients, built.graphs, built.test, built.key)
    evaluations = simulate.run(*arguments, membership=True)
    next(evaluations)
    seen = []

    def listen(event, seconds, **_):
        seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        assert [row['round'] for row, *_ in evaluations] == [2, 3]
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not any('compile' in event for event in seen)
