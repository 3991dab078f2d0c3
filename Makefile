# Everything is installed into .venv, which nothing needs to activate.
#
#   make chat                     talk to the embedded model; sets everything up the first time
#   make chat ARGS="-c 4096"      pass options on to `llmrun chat`
#   make chat GPU=cuda            build the engine for a GPU: cuda, metal, vulkan or rocm; cpu goes back
#   echo "..." | make chat > f    one answer, and only the answer, on stdout (from elsewhere: make -s -C DIR chat)
#   make test                     the tests that take seconds       (ARGS="tests/gguf -x" goes to pytest)
#   make test WORKERS=0           the same in one process; otherwise in one per processor
#   make check                    style, types, architecture, documentation, every test: what CI runs
#   make lint | docs | lock       the static checks | generated documentation | renewed lock files
#   make clean                    remove .venv and caches here (built engines stay in the user's cache)

PYTHON ?= python3
GPU ?=
ARGS ?=
WORKERS ?= auto
BIN := .venv/bin

.DEFAULT_GOAL := help
.NOTPARALLEL:
.SILENT:
.PHONY: help chat setup-chat setup-dev python-version test check lint docs docs-check lock clean

help:
	sed -n 's/^#   //p' Makefile

# stdin is the program's: setup must not read it, and must not write to stdout
setup-chat: python-version
	$(PYTHON) scripts/setup_env.py chat --gpu "$(GPU)" </dev/null >&2

setup-dev: python-version
	$(PYTHON) scripts/setup_env.py dev --gpu "$(GPU)" </dev/null >&2

python-version:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' </dev/null >&2 || { \
		echo "llmrun needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 ..." >&2; \
		exit 1; }

chat: setup-chat
	exec $(BIN)/llmrun chat $(ARGS)

test: setup-dev
	exec $(BIN)/python -m pytest -n $(WORKERS) -m "not slow" $(ARGS)

# with CI set Hypothesis draws the same examples each time (tests/conftest.py): no new draw stops a change
check: lint docs-check
	exec env CI=1 $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: setup-dev
	$(BIN)/python scripts/cli_docs.py
	$(BIN)/python scripts/config_docs.py
	$(BIN)/python scripts/catalogue_docs.py

docs-check: setup-dev
	$(BIN)/python scripts/cli_docs.py --check
	$(BIN)/python scripts/config_docs.py --check
	$(BIN)/python scripts/catalogue_docs.py --check

lock: python-version
	$(PYTHON) scripts/lock.py

clean:
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
