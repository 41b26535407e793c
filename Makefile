# Development tasks. Everything runs in $(VENV), which is made from pyproject.toml when it is missing
# or older than that. `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= test
TESTS := $(VENV)/.extras-$(EXTRAS)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ALL := test,docs,pandas,tables,datasets,flower-simulation,torch,tensorboard,mlflow,wandb,dask,privacy,notebook,reference
# SLOW=1 includes the tests that need processes, a browser, a wheel, a notebook or a built site.
XDIST ?= -n 2 --dist worksteal
# Files that the documentation shows beside mathematics, in 88 columns.
NARROW := src/fedpage/methods src/fedpage/core/local_steps.py
PYTEST := $(BIN)/python -m pytest $(XDIST) $(if $(SLOW),-m "")

.PHONY: help demo test lint types imports tests mutants torture fuzz faults bench bench-codecs \
  bench-torch bench-peers communication examples docs flower-demo wheels lock shell clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | \
	  awk -F'|' '{ printf "%-22s %s\n", $$1, $$2 }'

demo: $(VENV)/.core ## install fedpage in .venv and compare methods in a minute
	$(BIN)/fedpage demo

test: lint types imports tests ## style, types, imports and tests; SLOW=1 for all tests

lint: $(TESTS) ## style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/ruff check --select E501 --line-length 88 $(NARROW)
	$(BIN)/ruff format --check --line-length 88 --config 'format.exclude=[]' $(NARROW)

types: $(TESTS) ## static types of src and tests
	$(BIN)/mypy

imports: $(TESTS) ## each package imports only from the packages below it
	$(BIN)/lint-imports --no-logo

tests: $(TESTS) ## the tests alone
	$(PYTEST)

mutants: $(TESTS) ## change the methods in one place at a time; the laws must fail
	$(BIN)/python tests/mutants.py

torture: $(TESTS) ## kill runs at random moments; a resumed run must have the same bits
	$(BIN)/python tests/torture.py

CASES ?= 1000000
SEED ?= 0
fuzz: $(TESTS) ## feed random files to every reader; CASES=1000000 SEED=0
	$(BIN)/python tests/fuzz.py --cases $(CASES) --seed $(SEED)

faults: $(TESTS) ## methods under clients that fail
	$(BIN)/python benchmarks/faults.py

bench: $(TESTS) ## speed; BEFORE=DIR compares with the fedpage in DIR/src
	$(BIN)/python benchmarks/speed.py $(if $(BEFORE),--before $(BEFORE))

bench-codecs: $(TESTS) ## cost of codecs, against the local steps they follow
	$(BIN)/python benchmarks/codec_costs.py

# jax is a reference of this benchmark only, in an environment of its own
bench-torch: ## speed of torch models, beside jax
	$(MAKE) VENV=.venv-bench EXTRAS=torch .venv-bench/.extras-torch
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check jax
	.venv-bench/bin/python benchmarks/torch_speed.py

REPETITIONS ?= 3
bench-peers: $(TESTS) ## speed against other libraries
	$(BIN)/python benchmarks/peers/run.py --repetitions $(REPETITIONS) $(if $(INTO),--into $(INTO))

communication: $(TESTS) ## bytes to a target, per method
	$(BIN)/python benchmarks/communication.py

examples: ## run the long examples in full and compare with the gallery
	$(MAKE) EXTRAS=test,torch $(VENV)/.extras-test,torch
	$(BIN)/python tools/docs/gallery.py --check

# The site in site/, and a check of its links. Nothing of it is loaded from another host.
docs: ## build the documentation in site/
	$(MAKE) EXTRAS=docs $(VENV)/.extras-docs
	$(BIN)/python tools/docs/prebuild.py build/docs
	$(BIN)/zensical build --strict
	$(BIN)/python tools/docs/links.py site

flower-demo: ## a federation of real processes on this machine
	$(MAKE) EXTRAS=flower $(VENV)/.extras-flower
	$(BIN)/fedpage deploy demo

wheels: $(TESTS) ## build the wheel and try it with every Python that is here
	$(BIN)/python tools/wheels.py

lock: ## write constraints.txt anew, from the newest versions that pyproject.toml allows
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$(ALL)]"
	.venv-lock/bin/python tools/lock.py

shell: $(TESTS) ## a shell in which fedpage, pytest and ruff are on the path
	@PATH="$(abspath $(BIN)):$$PATH" VIRTUAL_ENV="$(abspath $(VENV))" $${SHELL:-/bin/sh}

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedpage needs Python 3.11 or newer; this is `$(PYTHON) --version`. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml
	$(PIP) -e .
	@touch $@

$(TESTS): $(VENV)/.core
	$(PIP) -e ".[$(EXTRAS)]"
	@touch $@

clean: ## remove the environment and everything that is built
	rm -rf $(VENV) .venv-lock .venv-bench build dist site demo-report flower-demo
