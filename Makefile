# `make help` lists the targets. Everything is installed into .venv, on first use.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
WORKERS ?= 2
# accelerator is for a GPU or TPU, aot needs their compilers, same_results an earlier checkout.
BENCH ?= $(patsubst benchmarks/%.py,benchmarks.%,$(filter-out benchmarks/_% \
  $(patsubst %,benchmarks/%.py,accelerator aot same_results),$(wildcard benchmarks/*.py)))

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
TYPED := dfl_jax experiments benchmarks tests/torture

.DEFAULT_GOAL := help
.PHONY: help run quick test integration slow faults torture lint bench docs nt dist clean
.NOTPARALLEL:

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*##/  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20
	@echo 'Variables: PYTHON=python3.12, ARGS="--rounds=5" (run, quick, test, integration, ...),'
	@echo '           WORKERS=2 (quick, test, integration, torture),'
	@echo '           BENCH=benchmarks.round (bench); on a GPU or TPU'
	@echo '           BENCH=benchmarks.accelerator ARGS="--data_dir=DIR --minutes=12"'

run: $(VENV)/.installed  ## NTK-DFL on the handwritten digits; other settings by ARGS
	@$(BIN)/python -m experiments.run $(ARGS)

test: $(VENV)/.installed-test $(VENV)/.installed-nt  ## the tests, but for the slow ones and those of `make integration`
	@$(BIN)/python -m pytest -q -m 'not slow and not integration' -n $(WORKERS) --dist=loadfile \
	  --no-loadscope-reorder $(ARGS)

integration: $(VENV)/.installed-test $(VENV)/.installed-nt  ## tests of whole commands: kills, resumption, sweeps, the site
	@$(BIN)/python -m pytest -q -m 'integration and not slow' -n $(WORKERS) --dist=loadfile \
	  --no-loadscope-reorder $(ARGS)

slow: $(VENV)/.installed-test $(VENV)/.installed-nt  ## the slow tests: further cases of what the others test, an hour
	@$(BIN)/python -m pytest -q -m slow -n $(WORKERS) --dist=loadfile $(ARGS)

quick: $(VENV)/.installed-test  ## the tests to run while working, under 90 seconds
	@$(BIN)/python -m pytest -q -m quick -n $(WORKERS) --dist=loadfile $(ARGS)

faults: $(VENV)/.installed-test $(VENV)/.installed-nt  ## deliberate faults that the tests must catch, hours
	@$(BIN)/python -m tests.faults $(ARGS)

torture: $(VENV)/.installed-test  ## mistreat the program: kills, damage, full disks, bad input
	@$(BIN)/python -m tests.torture --workers=$(WORKERS) $(ARGS)

lint: $(VENV)/.installed-test  ## style, format, types and spelling
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(TYPED)
	@$(BIN)/codespell

docs: $(VENV)/.installed-docs  ## the documentation as a site, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'Open site/index.html'

bench: $(VENV)/.installed  ## every benchmark, one after the other
	@set -e; for module in $(BENCH); do echo "== $$module"; $(BIN)/python -m $$module $(ARGS); done

nt: $(VENV)/.installed-nt  ## add neural-tangents, without TensorFlow

dist: | $(BIN)/python  ## the wheel and the sources for an index, checked, into dist/
	@$(PIP) -e '.[release]'
	@rm -rf dist
	@$(BIN)/python -m build
	@$(BIN)/twine check --strict dist/*

clean:  ## remove the environment and all caches, keep data and runs
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

CHECK := import sys; v = sys.version_info[:2]; ok = (3, 11) <= v < (3, 14); \
	sys.exit(0 if ok else "dfl_jax needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is %d.%d: choose \
	another with `make PYTHON=python3.12 ...`" % v)

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo 'no $(PYTHON) here: choose a Python, 3.11 to 3.13,' \
	  'with `make PYTHON=python3.12 ...`' >&2; exit 1; }
	@$(PYTHON) -c '$(CHECK)'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing dfl_jax into $(VENV) ...'
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing dfl_jax and its test tools into $(VENV) ...'
	@$(PIP) -e '.[all]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(VENV)/.installed
	@$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.installed-nt: pyproject.toml constraints.txt | $(VENV)/.installed
	@$(PIP) -e '.[nt]'
	@$(PIP) --no-deps neural-tangents==0.6.5
	@touch $@
