"""What the packages hand on says what it is, and which shapes its arrays have."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_their_examples_are_as_they_say():
    tried = 0
    for file in sorted((ROOT / 'dfl_jax').rglob('*.py')):
        if '>>> ' in file.read_text():
            module = importlib.import_module('.'.join(file.relative_to(ROOT).with_suffix('').parts))
            failed, examples = doctest.testmod(module)
            assert not failed and examples, file
            tried += examples
    assert tried


def handed_on():
    """The functions and classes that the packages of the library hand on, by their names there."""
    found = {}
    for init in (ROOT / 'dfl_jax').rglob('__init__.py'):
        package = '.'.join(init.parent.relative_to(ROOT).parts)
        for node in ast.walk(ast.parse(init.read_text())):
            if isinstance(node, ast.ImportFrom) and not package.startswith('dfl_jax.cli'):
                module = importlib.import_module(node.module)
                names = [alias.name for alias in node.names]
                found |= {f'{package}.{name}': getattr(module, name) for name in names}
    return {
        name: thing
        for name, thing in found.items()
        if inspect.isfunction(thing) or inspect.isclass(thing)
        if thing.__module__.startswith('dfl_jax')
    }


def has_arrays(function):
    """Whether it takes or returns arrays itself, not by the functions that it takes."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # errors
        return False
    annotations = [p.annotation for p in signature.parameters.values()]
    texts = map(str, (*annotations, signature.return_annotation))
    return any(re.search(r'\bArray\b|ndarray', t) and 'Callable' not in t for t in texts)


def test_everything_handed_on_has_a_docstring_of_its_own():
    things = handed_on()
    assert len(things) > 150
    texts = {name: inspect.getdoc(thing) or '' for name, thing in things.items()}
    without = [  # a dataclass makes a text of its fields
        n for n, text in texts.items() if not text or text.startswith(f'{things[n].__name__}(')
    ]
    assert not without


def test_arrays_have_their_shapes():
    things = {name: thing for name, thing in handed_on().items() if has_arrays(thing)}
    assert len(things) > 60
    without = []
    for name, thing in things.items():
        # Fields of a class have their shapes beside them
        text = inspect.getsource(thing) if inspect.isclass(thing) else inspect.getdoc(thing)
        if not re.search(r'\[\w|scalar', text or ''):
            without.append(name)
    assert not without
