# `make demo` and `make test` create .venv. They need Python >= 3.11, and prefer one that has newer releases of JAX.
PYTHON ?= $(eval PYTHON := $(or $(shell .ci/find_python 3.13 3.12),python3))$(PYTHON)
VENV   ?= .venv
BIN     = $(VENV)/bin
DEMO   ?= runs/demo

.PHONY: help demo ready test smoke newest drill accelerators docs lint format constraints audit release-check clean

help:
	@echo "make demo     set up, train and evaluate a small model"
	@echo "make test     set up, run all tests"
	@echo "make drill    the long tests (fault injection, large corpora)"
	@echo "make accelerators  compile for GPUs and TPUs and check memory, traffic and messages; needs no device, but 6 GB and hours"
	@echo "make docs     the site: tutorial, guides, API reference, into site/"
	@echo "make lint     check formatting, lint and types, as CI does"
	@echo "make format   fix the formatting"
	@echo "make audit    check the pinned dependencies for known vulnerabilities; needs the network"
	@echo "make release-check  build sdist and wheel into dist/, install and use them in empty environments; needs the network"
	@echo "PYTHON=python3.13 make ...   chooses the interpreter; VENV=.venv-313 its environment"

# Trains on the embedded grammar and evaluates the result. Repeating it resumes an interrupted run.
demo: $(VENV)/demo
	$(BIN)/transformer-jax train --config=configs/demo.py --workdir=$(DEMO)
	$(BIN)/transformer-jax evaluate --workdir=$(DEMO) --split=test
	@echo; echo "A few sentences, and their translations:"; cat configs/demo.txt; echo
	@$(BIN)/transformer-jax translate --workdir=$(DEMO) configs/demo.txt
	@echo
	$(BIN)/transformer-jax plot attention --workdir=$(DEMO) --output=$(DEMO)/attention.html \
	  --text="the old teacher who sleeps reads a book ."
	$(BIN)/transformer-jax plot page --workdir=$(DEMO)
	@echo
	@echo "Look at $(DEMO)/page.html and $(DEMO)/attention.html. Translate your own sentences:"
	@echo "  $(BIN)/transformer-jax translate --workdir=$(DEMO)"

# Each worker takes neighbouring tests, which share trained runs and compiled programs, and then from the others' ends.
test: $(VENV)/ready
	$(BIN)/python -m pytest -n auto --dist worksteal

# For a second interpreter: what meets the interfaces of jax, flax, optax and orbax.
SMOKE = test_import.py model/test_parity.py model/test_nnx.py update/test_training_parity.py update/test_optimizer.py \
  update/test_sharding.py::test_several_devices_train_as_one search/test_hf_beam.py runs/test_checkpoint.py \
  runs/test_export.py training/test_train.py
smoke: $(VENV)/ready
	$(BIN)/python -m pytest -n auto --dist worksteal $(SMOKE:%=tests/%)

ready: $(VENV)/ready

# Against newer releases than constraints.txt has; PRE=--pre also takes pre-releases.
newest: $(VENV)/ready
	$(BIN)/pip install --upgrade $(PRE) jax jaxlib flax optax orbax-checkpoint
	$(BIN)/pip list
	$(BIN)/python -m pytest -n auto --dist worksteal

drill: $(VENV)/ready
	$(BIN)/python -m pytest tests/drills -m ""
	$(BIN)/python -m pytest -m drill
	$(BIN)/python -m tests.chaos --runs=200

# TPU=PYTHON and CUDA=PYTHON are interpreters that have the compilers already; ARGUMENTS="--only='base 8xH100' --record".
accelerators: $(if $(TPU),,$(VENV)-tpu/ready) $(if $(CUDA),,$(VENV)-cuda/ready)
	$(PYTHON) -m tests.accelerators --tpu=$(or $(TPU),$(VENV)-tpu/bin/python) \
	  --cuda=$(or $(CUDA),$(VENV)-cuda/bin/python) $(ARGUMENTS)

# mkdocstrings needs ruff on the path to format long signatures.
docs: $(VENV)/docs
	PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "To read it: $(BIN)/python -m http.server --directory site, then open http://localhost:8000"

lint: $(VENV)/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What the demo needs, without TensorFlow Datasets and the developers' tools.
$(VENV)/demo: extras = train,report
$(VENV)/ready: extras = dev
$(VENV)/demo $(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python >= 3.11 is needed, $(PYTHON) is older: PYTHON=python3.12 make ..."; exit 2; }
	[ "$$($(BIN)/python -V 2>&1)" = "$$($(PYTHON) -V)" ] || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[$(extras)]'
	@touch $@

$(VENV)-tpu/ready $(VENV)-cuda/ready: $(VENV)-%/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,$*]'
	@touch $@

$(VENV)/docs: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

# Run with uv installed, after changing dependencies: one file for every supported Python.
constraints:
	uv pip compile --universal --python-version 3.11 --extra dev --extra docs --no-header --no-annotate \
	  --no-emit-index-url pyproject.toml -o constraints.txt

# Strict: otherwise packages that cannot be checked are skipped silently.
audit:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict

# In an environment of each supported Python that is there; the others are reported as skipped.
release-check: $(VENV)/ready
	rm -rf dist
	DIST_FOLDER=dist $(BIN)/python -m pytest -n 0 -rs -m "" tests/drills/test_wheel.py
	@ls dist

clean:
	rm -rf .venv* .mypy_cache .pytest_cache .ruff_cache build dist
