# make demo     set up, then train the tiny reasoner with BRPO on this machine (no GPU needed)
# make test     set up, then lint, type-check and test
# make chaos    set up, then kill, stop and signal processes and nodes of whole runs (60 minutes)
# make test-long  set up, then train with further models and settings (8 minutes)
# make test-cluster  set up, then train on three Ray nodes in network namespaces (Linux, root), and as jobs
# make mutants  set up, then check that the tests notice the mistakes of tests/mutants.toml
# make setup    the environment alone: .venv with the locked CPU stack
# make docs     the manual as a website in site/, built in an environment of its own: .venv-docs

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_VENV := .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready

.PHONY: demo test test-long test-cluster chaos mutants setup lint format docs clean

demo: setup
	$(BIN)/rlsys train configs/demo.yaml

test: setup lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-long: setup
	$(BIN)/python -m pytest --long -m long

chaos: setup
	$(BIN)/python -m pytest --chaos tests/test_faults.py tests/test_chaos.py tests/test_nodes.py \
	    tests/test_signal_moments.py tests/test_hostile_strings.py tests/test_rea_runs.py \
	    tests/test_dialogue_runs.py

test-cluster: setup
	$(BIN)/python -m pytest --cluster tests/cluster tests/test_jobs.py

mutants: setup
	$(BIN)/python tests/mutants.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(READY)

$(READY): requirements/cpu.txt requirements/cpu-no-deps.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --requirement requirements/cpu.txt
	$(BIN)/pip install --quiet --no-deps --requirement requirements/cpu-no-deps.txt
	DS_ACCELERATOR=cpu DS_BUILD_OPS=0 $(BIN)/pip install --quiet --no-deps --no-build-isolation deepspeed==0.19.8
	$(BIN)/pip install --quiet --no-deps --editable .
	touch $(READY)

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict

$(DOCS_READY): pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install --quiet "pip>=25.1"
	$(DOCS_VENV)/bin/pip install --quiet --group docs
	touch $(DOCS_READY)

clean:
	rm -rf $(VENV) $(DOCS_VENV) site .mypy_cache .ruff_cache .pytest_cache
