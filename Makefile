# Needs Python 3.11+, a C compiler and the package registry; everything else is made in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/made
# Bytecode is kept, whatever the surroundings say: tests start some thousand interpreters, each of which would compile forge.
export PYTHONDONTWRITEBYTECODE :=
# Tests wait for processes and clocks most of the time: more of them than cores. One that fails is run once more, and the
# report names it: thousands of real processes share the machine, and a failure that does not come again is looked into, but
# does not stop others' work.
PYTEST := $(BIN)/python -m pytest -q -n 6 --reruns 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint test-slow sanitize fuzz bench figures samples clean

help:  ## what can be made
	@sed -n 's/^\([a-z-]*\):.*##  */\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(STAMP)  ## make .venv, install everything, build the extension

# Again only when what is installed or compiled has changed.
$(STAMP): pyproject.toml setup.py forge/_fastpath.pyx $(wildcard forge/_native/*.pxi)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'forge needs Python 3.11 or later; try make PYTHON=python3.12'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	FORGE_REQUIRE_EXT=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: setup  ## see forge work, in one terminal
	$(BIN)/python -m forge.cli.demo

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## the gate: lint, then every test on both storages and with both fast paths
	FORGE_IMPL=c $(PYTEST)
	FORGE_IMPL=py $(PYTEST) -m 'not slow and not impl_free'

test-slow: setup  ## the tests that take minutes
	FORGE_IMPL=c $(BIN)/python -m pytest -q -m slow --timeout 1800

# In a copy, so that the ordinary build stays as it is. The sanitisers' libraries must be there before Python itself, and Python
# must leave memory to them. It never frees all it has, so leaks are not looked for. Reports go past pytest's capture.
SANITIZED := $(CURDIR)/build/sanitize
SANITIZERS := -fsanitize=address,undefined
SANITIZING = env LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$(SANITIZED) $(CURDIR)/$(BIN)/python
sanitize: setup  ## the fast path's tests, its C under the address and undefined-behaviour sanitisers (gcc)
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	cp -r forge tests bench setup.py pyproject.toml README.md LICENSE $(SANITIZED)
	cd $(SANITIZED) && rm -f forge/*.so forge/_fastpath.c && CC=gcc LDSHARED='gcc -shared' FORGE_REQUIRE_EXT=1 \
		CFLAGS='-O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all $(SANITIZERS)' LDFLAGS='$(SANITIZERS)' \
		$(CURDIR)/$(BIN)/python setup.py -q build_ext --inplace
	cd $(SANITIZED) && $(SANITIZING) -c 'import forge._fastpath as f; assert f.__file__.startswith("$(SANITIZED)/"), f'
	cd $(SANITIZED) && $(SANITIZING) -m pytest -q -p no:cacheprovider --capture=sys -k 'not postgres_reads' tests/test_fastpath*.py \
		tests/worker/test_burst.py

# Three minutes unless told otherwise (FUZZ_SECONDS=3600). Only here is the fuzzer needed, which is a large download.
FUZZ_SECONDS ?= 180
fuzz: setup  ## what a master reads from its children, under a fuzzer
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	PYTHONPATH=$(CURDIR) $(BIN)/python tests/fuzz/fuzz_children.py -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=20 \
		-print_final_stats=1 -artifact_prefix=build/fuzz/ build/fuzz/children

bench: setup  ## all benches in short, and their figures into the documents (half an hour; goes on where it was stopped)
	$(BIN)/python bench/all.py
	@$(MAKE) --no-print-directory figures

figures: setup  ## the figures and plots of the documents, from bench/results.json
	$(BIN)/python bench/figures.py
	$(BIN)/python bench/plots.py

samples: setup  ## the samples of logs and screens in the documents, from real runs
	$(BIN)/python -m tests.samples

clean:  ## remove everything that was made
	rm -rf $(VENV) build dist bench/.peers *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache forge/_fastpath.c forge/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
