"""Ways to damage a run directory, one at a time, chosen by chance."""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

DEEP = '[' * 100_000


def tamper(run: Path, rng: random.Random) -> str:
    """Damages one file or folder below `run`; returns which, and how."""
    files = sorted(path for path in run.rglob('*') if path.is_file() and path.stat().st_size)
    deep = [path for path in files if 'checkpoints' in path.parts]
    flat = [path for path in files if path not in deep] + [p for p in [run / 'done'] if p.exists()]
    folders = sorted(path for path in run.rglob('*') if path.is_dir())
    chance = rng.random()
    if chance < 0.3 and (found := _named(flat, 'metrics.jsonl', rng)):
        return _damage(run, found, rng, (*OF_ANY, *OF_LINES, *OF_LINES))
    if chance < 0.5 and (found := _named(flat, 'config.json', rng)):
        return _damage(run, found, rng, (*OF_ANY, another_setting, another_setting))
    if chance < 0.6 and folders:
        return _damage(run, rng.choice(folders), rng, OF_FOLDERS)
    if chance < 0.9 and deep:
        return _damage(run, rng.choice(deep), rng, OF_ANY)
    return _damage(run, rng.choice(flat or files), rng, OF_ANY)


Way = Callable[[Path, random.Random], None]


def _damage(run: Path, path: Path, rng: random.Random, ways: tuple[Way, ...]) -> str:
    way = rng.choice(ways)
    way(path, rng)
    return f'{path.relative_to(run)}: {way.__name__.replace("_", " ")}'


def _named(paths: list[Path], name: str, rng: random.Random) -> Path | None:
    found = [path for path in paths if path.name == name]
    return rng.choice(found) if found else None


# ------------------------------------------------------------------------------------- any file


def missing(path: Path, rng: random.Random) -> None:
    path.unlink()


def empty(path: Path, rng: random.Random) -> None:
    path.write_bytes(b'')


def cut(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(max(len(content), 1))])


def bits_flipped(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes() or b'\0')
    for _ in range(rng.choice((1, 1, 1, 5, 50))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def grown(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(100))


def zeros(path: Path, rng: random.Random) -> None:
    """Damage of the same length, as a crash of the machine may leave it."""
    path.write_bytes(bytes(path.stat().st_size))


def a_folder_instead(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def other_content(path: Path, rng: random.Random) -> None:
    choice = rng.choice(('[]', 'null', '{}', '3', '"text"', DEEP, '[null]\n', rng.randbytes(2000)))
    path.write_bytes(choice if isinstance(choice, bytes) else choice.encode())


OF_ANY: tuple[Way, ...] = (
    *(missing, empty, cut, cut, bits_flipped, bits_flipped, bits_flipped, grown, zeros),
    *(a_folder_instead, other_content, other_content),
)

# ----------------------------------------------------------------------------- lines and settings


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def a_line_dropped(path: Path, rng: random.Random) -> None:
    lines = _lines(path)
    del lines[rng.randrange(len(lines))]
    path.write_text(''.join(lines))


def a_line_repeated(path: Path, rng: random.Random) -> None:
    lines = _lines(path)
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    path.write_text(''.join(lines))


def lines_swapped(path: Path, rng: random.Random) -> None:
    lines = _lines(path)
    if len(lines) < 2:
        return a_line_dropped(path, rng)
    i, j = rng.sample(range(len(lines)), 2)
    lines[i], lines[j] = lines[j], lines[i]
    path.write_text(''.join(lines))


def a_digit_changed(path: Path, rng: random.Random) -> None:
    """Damage to a number that is not a time: another result that reads like one."""
    text = path.read_text()
    numbers = [*re.finditer(r'"(?!seconds|digest)\w+": \d+\.\d*(\d)', text)]
    place = rng.choice(numbers).start(1)
    digit = rng.choice([each for each in '0123456789' if each != text[place]])
    path.write_text(text[:place] + digit + text[place + 1 :])


def another_setting(path: Path, rng: random.Random) -> None:
    """In a config.json that still can be read."""
    config = json.loads(path.read_text())
    name = rng.choice(('seed', 'clients', 'rounds', 'lr', 'algorithm', 'nonsense'))
    config['settings'][name] = {'lr': 0.3, 'algorithm': 'dfedavg', 'nonsense': 1}.get(name, 4)
    path.write_text(json.dumps(config, indent=2) + '\n')


OF_LINES: tuple[Way, ...] = (a_line_dropped, a_line_repeated, lines_swapped, a_digit_changed)

# ---------------------------------------------------------------------------------------- folders


def folder_missing(path: Path, rng: random.Random) -> None:
    shutil.rmtree(path)


def folder_emptied(path: Path, rng: random.Random) -> None:
    shutil.rmtree(path)
    path.mkdir()


def a_file_instead(path: Path, rng: random.Random) -> None:
    shutil.rmtree(path)
    path.write_text('')


def renamed(path: Path, rng: random.Random) -> None:
    """A checkpoint to a round that it is not of, anything else to another name."""
    number = int(path.name) + rng.choice((-1, 1, 100)) if path.name.isdecimal() else 'renamed'
    if not (target := path.with_name(str(number))).exists():
        path.rename(target)


OF_FOLDERS: tuple[Way, ...] = (folder_missing, folder_emptied, a_file_instead, renamed)
