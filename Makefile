# Everything runs in .venv, which is made from pyproject.toml when it is missing or older than that.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= test
TESTS := $(VENV)/.extras-$(EXTRAS)

.PHONY: demo test lint types rooms tests mutants torture fuzz faults bench bench-torch bench-peers communication docs flower-demo wheels clean

demo: $(VENV)/.core
	$(BIN)/fedpage demo

test: $(TESTS) lint types rooms tests

lint: $(TESTS)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(TESTS)
	$(BIN)/mypy

rooms: $(TESTS)
	$(BIN)/lint-imports --no-logo

tests: $(TESTS)
	$(BIN)/python -m pytest

mutants: $(TESTS)
	$(BIN)/python tests/mutants.py

torture: $(TESTS)
	$(BIN)/python tests/torture.py

CASES ?= 1000000
SEED ?= 0
fuzz: $(TESTS)
	$(BIN)/python tests/fuzz.py --cases $(CASES) --seed $(SEED)

faults: $(TESTS)
	$(BIN)/python benchmarks/faults.py

bench: $(TESTS)
	$(BIN)/python benchmarks/speed.py

bench-torch:
	$(MAKE) EXTRAS=torch $(VENV)/.extras-torch
	$(BIN)/python benchmarks/torch_speed.py

# The site in site/, and a check of its links. Nothing of it is loaded from another host.
docs:
	$(MAKE) EXTRAS=docs $(VENV)/.extras-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python tools/docs/links.py site

communication: $(TESTS)
	$(BIN)/python benchmarks/communication.py

REPETITIONS ?= 3
bench-peers: $(TESTS)
	$(BIN)/python benchmarks/peers/run.py --repetitions $(REPETITIONS) $(if $(INTO),--into $(INTO))

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedpage needs Python 3.11 or newer; this is `$(PYTHON) --version`. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(TESTS): $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$(EXTRAS)]"
	@touch $@

flower-demo:
	$(MAKE) EXTRAS=flower $(VENV)/.extras-flower
	$(BIN)/fedpage deploy demo

wheels: $(TESTS)
	$(BIN)/python tools/wheels.py

clean:
	rm -rf $(VENV) build dist site demo-report flower-demo
