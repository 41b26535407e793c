# Everything runs in .venv, which is made from pyproject.toml when it is missing or older than that.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= test

.PHONY: demo test lint types rooms tests mutants bench clean

demo: $(VENV)/.core
	$(BIN)/fedpage demo

test: $(VENV)/.test lint types rooms tests

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.test
	$(BIN)/mypy

rooms: $(VENV)/.test
	$(BIN)/lint-imports --no-logo

tests: $(VENV)/.test
	$(BIN)/python -m pytest

mutants: $(VENV)/.test
	$(BIN)/python tests/mutants.py

bench: $(VENV)/.test
	$(BIN)/python benchmarks/speed.py

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedpage needs Python 3.11 or newer; this is `$(PYTHON) --version`. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.test: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$(EXTRAS)]"
	@touch $@

clean:
	rm -rf $(VENV) build dist demo-report
