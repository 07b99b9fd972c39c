"""Shows runs while they go on: `dfl-jax watch RUN`

Serves the page of `dfl-jax report` to browsers of this machine alone, at http://127.0.0.1:8000. The
page is made anew when a run has evaluated, and then loads itself again; it keeps what was chosen on
it. RUN is a run directory, or a folder of them. Ctrl-C ends it. It needs the extra `report`.
"""

import contextlib
import functools
import hashlib
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from absl import flags

from dfl_jax.cli.command import one_line_errors
from dfl_jax.cli.report.command import check_target, report
from dfl_jax.cli.report.saved_runs import find_runs
from dfl_jax.results.directories import directories

FLAGS = flags.FLAGS
LIVE = Path(__file__).with_name('live.js')
LOOPBACK = '127.0.0.1'
WATCHED = ('config.json', 'metrics.jsonl', 'done')  # of a run


class Pages:
    """The newest page of the runs below a folder, made when it is asked for."""

    def __init__(self, source: Path, target: float):
        self._source, self._target = source, target
        self._lock = threading.Lock()
        self._page = ('', '')  # of which version, and its text

    def version(self) -> str:
        """A digest of how far the runs are."""
        digest = hashlib.sha256()
        files = (folder / name for folder in directories(self._source) for name in WATCHED)
        for file in files:
            if file.is_file():
                digest.update(f'{file} {file.stat().st_mtime_ns} {file.stat().st_size}\n'.encode())
        return digest.hexdigest()[:16]

    def page(self) -> str:
        """Raises ValueError or OSError where no run can be read."""
        with self._lock:
            version = self.version()
            if self._page[0] != version:
                name = self._source.resolve().name
                text = report(name, *find_runs(self._source), self._target)
                script = LIVE.read_text(encoding='utf-8')
                live = f'<script>const version = {version!r};\n{script}</script>\n</body>'
                self._page = version, live.join(text.rsplit('</body>', 1))
            return self._page[1]


class Handler(BaseHTTPRequestHandler):
    """Answers with the page, and with its version."""

    def __init__(self, *request, pages: Pages):
        self._pages = pages
        super().__init__(*request)

    def do_GET(self) -> None:
        # A page from elsewhere whose name leads to this machine would read what is meant for none
        if self.headers.get('Host', '').partition(':')[0] not in (LOOPBACK, 'localhost'):
            return self._answer(403, 'this page is only for browsers of this machine')
        answers = {
            '/': ('text/html', self._pages.page),
            '/version': ('text/plain', self._pages.version),
        }
        kind, made = answers.get(self.path, ('text/plain', None))
        if made is None:
            return self._answer(404, 'the page is at /')
        try:
            text = made()
        except (ValueError, OSError) as error:
            return self._answer(503, f'{error}; this page loads itself again')
        with contextlib.suppress(ConnectionError):  # of a browser that has left
            self._answer(200, text, kind)

    def _answer(self, status: int, text: str, kind: str = 'text/plain') -> None:
        content = text.encode('utf-8', 'backslashreplace')
        self.send_response(status)
        self.send_header('Content-Type', f'{kind}; charset=utf-8')
        self.send_header('Content-Length', str(len(content)))
        self.send_header('Cache-Control', 'no-store')
        if status == 503:
            self.send_header('Refresh', '2')  # seconds
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_) -> None:
        """Nothing: a line a request would hide the address."""


def server(source: Path, port: int, target: float) -> ThreadingHTTPServer:
    """Serves the page when its `serve_forever` runs; port 0 is one that is free.

    Raises ValueError where no run can be read or the port is taken.
    """
    check_target(target)
    pages = Pages(source, target)
    pages.page()
    try:
        return ThreadingHTTPServer((LOOPBACK, port), functools.partial(Handler, pages=pages))
    except OSError as error:
        raise ValueError(
            f'--port={port} cannot be had ({error.strerror}); choose another, or 0 for a free one'
        ) from None


def define_flags(_: Sequence[str]) -> None:
    """Defines the flags of this command, whose names others use for something else."""
    flags.DEFINE_integer('port', 8000, 'Port of the page; 0: any free port.', 0, 65535)
    flags.DEFINE_float('target', 0.85, 'Accuracy until which rounds and megabytes are counted.')


@one_line_errors('interrupted', hint=None)
def main(argv: list[str]) -> int:
    if len(argv) != 2:
        raise ValueError('name one run directory, or one folder of them: dfl-jax watch RUN')
    with server(Path(argv[1]), FLAGS.port, FLAGS.target) as serving:
        print(f'{argv[1]}: http://{LOOPBACK}:{serving.server_port} (Ctrl-C ends it)', flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            serving.serve_forever()
    return 0
