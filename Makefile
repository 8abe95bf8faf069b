# Everything from a bare machine: python3 (3.11 to 3.13), gcc, make, git.

PYTHON ?= python3
VENV   ?= .venv
# The version of torch that the tests run on. It is installed first and alone, so that no later
# dependency decides which build of torch comes.
TORCH  ?= torch==2.13.0
# Where pip would bring a CUDA build, point it to CPU wheels: make venv TORCH_PIP_ARGS="--index-url …"
TORCH_PIP_ARGS ?=
# Two: the tests start compilers and servers of their own.
WORKERS ?= 2
ARGS   ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help venv test test-extended lint format docs k8s demo loadtest clean

help:
	@echo "make demo [ARGS='--model llama --store s3']   cold and warm compile through a farm"
	@echo "make test [ARGS='-k name']                    the tests"
	@echo "make test-extended                            many more models, dtypes and sizes"
	@echo "make loadtest                                 five minutes of load on a real farm, and a report"
	@echo "make lint                                     ruff, mypy"
	@echo "make docs                                     docs/metrics.md and the dashboards, from the code"
	@echo "make venv                                     $(VENV) with everything in it"

venv: $(STAMP)

$(STAMP): pyproject.toml .ci/install_helm.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH_PIP_ARGS) "$(TORCH)" numpy
	@$(BIN)/python -c "import torch, sys; sys.exit(torch.version.cuda and 'pip brought a CUDA build of torch: set TORCH_PIP_ARGS to an index of CPU wheels')"
	$(BIN)/python -c "import importlib.metadata as m; print('torch==' + m.version('torch'))" > $(VENV)/torch-constraint.txt
	$(BIN)/python -m pip install --quiet -c $(VENV)/torch-constraint.txt -e '.[farm,cache,dev]'
	$(BIN)/python .ci/install_helm.py $(BIN)
	touch $(STAMP)

test: venv
	.ci/offline $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not extended" $(ARGS)

# Many more models, dtypes and sizes; minutes to an hour.
test-extended: venv
	.ci/offline $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m extended --timeout 900 $(ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: venv
	$(BIN)/python -m deploy.observability.metrics_doc
	$(BIN)/python -m deploy.observability.dashboards
	$(BIN)/python -m deploy.values_doc

# k8s/base from the Helm chart, and what the cache image installs from pyproject.toml.
k8s: venv
	$(BIN)/python k8s/generate.py
	$(BIN)/python deploy/docker/requirements.py

# Five minutes of load on a real S3 server, service and farm; LOAD holds the report.
LOAD ?= build/loadtest

loadtest: venv
	.ci/offline $(BIN)/python -m loadtest --out $(LOAD) $(ARGS)

demo: venv
	.ci/offline $(BIN)/fusec demo $(ARGS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
