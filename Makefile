# Everything a newcomer needs: `make demo` shows the main job, `make test` proves it. Both set up what they need.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup cluster demo test test-gpu lint bench fuzz manifests clean

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/'

$(STAMP): pyproject.toml
	@echo "Setting up $(VENV) (Python packages from PyPI, once) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Faultline needs Python 3.11 or newer; set PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(STAMP) ## Make the virtual environment

demo: $(STAMP) ## The whole agent on a made-up 8-GPU node (KEEP=1 keeps serving)
	@$(BIN)/faultline demo $(if $(KEEP),--keep)

test: $(STAMP) lint ## Every check and test
	@$(BIN)/python -m pytest -q

cluster: $(STAMP) ## The programs of the test cluster, built ahead of the tests (once; some 20 minutes on two cores)
	@$(BIN)/python -m tests.cluster.build

lint: $(STAMP) ## Style, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache | tail -n 4

test-gpu: $(STAMP) ## On a machine with an NVIDIA GPU and its kernel log, as root (needs nvcc and PyTorch)
	@$(BIN)/python -m tests.gpu.real_nvml
	@$(BIN)/python -m tests.gpu.real_xids
	@$(BIN)/python -m tests.gpu.real_cost

bench: $(STAMP) ## The figures of the README, measured here (peers: mtail, ripgrep)
	@$(BIN)/python -m tests.bench

fuzz: $(STAMP) ## Every parser on random bytes, for SECONDS (default 60)
	@$(BIN)/python -m tests.fuzz $(or $(SECONDS),60)

manifests: $(STAMP) ## manifests/base and overlays, from the Helm chart
	@$(BIN)/python -m tests.manifests.render --write

clean: ## Remove what the above made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
