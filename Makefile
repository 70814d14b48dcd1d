# make demo     set up, then train the tiny reasoner with BRPO on this machine (no GPU needed)
# make test     set up, then lint, type-check and test
# make setup    the environment alone: .venv with the locked CPU stack

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test setup lint format clean

demo: setup
	$(BIN)/rlsys train configs/demo.yaml

test: setup lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

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

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
