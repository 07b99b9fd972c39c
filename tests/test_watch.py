"""dfl-jax watch: the page of runs that go on, for browsers of this machine alone."""

import http.client
import re
import signal
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from helpers import started
from saved_runs import save_run

from dfl_jax.cli.watch import command as watch
from dfl_jax.experiment.run_directory import RunDirectory


@pytest.fixture
def served(tmp_path):
    """A run of two evaluations, the address of its page, and a function that adds another."""
    rows = save_run(tmp_path / 'run', rounds=2)
    (tmp_path / 'run' / 'done').unlink()
    directory = RunDirectory(tmp_path / 'run')

    def goes_on(r):
        directory.append(rows[-1] | {'round': r, 'consensus_accuracy': 0.987})

    with watch.server(tmp_path / 'run', 0, 0.85) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{serving.server_port}', goes_on
        serving.shutdown()


def read(address):
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.integration
def test_the_page_is_made_anew_when_the_run_goes_on(served):
    address, goes_on = served
    version, page = read(f'{address}/version'), read(address)
    assert f"version = '{version}'" in page and '98.7' not in page
    assert read(f'{address}/version') == version
    goes_on(3)
    later = read(f'{address}/version')
    assert later != version
    assert f"version = '{later}'" in read(address) and '98.7' in read(address)


def test_only_this_machine_is_answered(served):
    address, _ = served
    assert read(address.replace('127.0.0.1', 'localhost')).startswith('<!DOCTYPE html>')
    asked = http.client.HTTPConnection(address.removeprefix('http://'), timeout=30)
    for host, status in (('elsewhere.example:8000', 403), ('localhost', 200)):  # as of port 80
        asked.request('GET', '/', headers={'Host': host})
        answer = asked.getresponse()
        assert answer.status == status
        answer.read()
    asked.close()
    with pytest.raises(urllib.error.HTTPError, match='404'):
        read(f'{address}/config.json')


def test_runs_that_are_gone_are_an_answer(served, tmp_path):
    address, _ = served
    (tmp_path / 'run').rename(tmp_path / 'elsewhere')
    with pytest.raises(urllib.error.HTTPError, match='503') as raised:
        read(address)
    assert 'is no folder' in raised.value.read().decode()
    assert raised.value.headers['Refresh'] == '2'


@pytest.mark.integration
def test_the_command_says_where_and_ends_with_ctrl_c(tmp_path):
    save_run(tmp_path / 'run')
    process = started('dfl_jax.cli', 'watch', str(tmp_path / 'run'), '--port=0', cwd=tmp_path)
    said = lambda: process.out.read_text() if process.out.exists() else ''  # noqa: E731
    assert process.until(lambda: '(Ctrl-C ends it)' in said())
    address = re.search(r'http://127\.0\.0\.1:\d+', said())[0]
    assert '<!DOCTYPE html>' in read(address)
    process.kill(signal.SIGINT)
    assert process.outcome().status == 0


def test_errors_are_one_line(served, tmp_path, monkeypatch, capsys):
    def fails(*arguments, **changed):
        chosen = {'port': 0, 'target': 0.85} | changed
        monkeypatch.setattr(watch, 'FLAGS', SimpleNamespace(**chosen))
        assert watch.main(['watch', *map(str, arguments)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert 'dfl-jax watch RUN' in fails()
    assert 'absent is no folder' in fails(tmp_path / 'absent')
    assert '--target=2' in fails(tmp_path / 'run', target=2)
    taken = int(served[0].rpartition(':')[2])
    assert f'--port={taken} cannot be had' in fails(tmp_path / 'run', port=taken)
