# Needs python3 (3.11 or newer), pip and make; everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
DEMO := examples/llama3_100m_fsdp4.mlir --node A100_SXM_40GB --system A100_SXM_40GB_4GPU
# Where XLA's compiler for NVIDIA GPUs has a wheel; it needs no GPU.
COMPILES := $(filter Linux-x86_64 Linux-aarch64,$(shell uname -s)-$(shell uname -m))

COMPILERS := .venv-compilers

DOCS := .venv-docs

.PHONY: demo test test-all test-compilers test-torch fuzz programs faults audit docs docs-serve lock clean

demo: .venv/run-installed $(if $(COMPILES),.venv/compiler-installed)
	$(BIN)/hespas run $(DEMO)
	@$(BIN)/hespas run $(DEMO) --as-exported | \
		sed -n 's/^Step time *\(.*\)/\nAs exported, each operation by itself: \1/p'

test: .venv/dev-installed
	PATH="$(CURDIR)/$(BIN):$$PATH" ./check full

# Also what is marked `rest`: more examples of what other tests show already.
test-all: .venv/dev-installed
	PATH="$(CURDIR)/$(BIN):$$PATH" ./check all

# The extras gpu and tpu hold 1.4 GB, so that they have a place of their own.
test-compilers: $(COMPILERS)/installed
	HESPAS_COMPILERS=required $(COMPILERS)/bin/python -m pytest -q -n auto --maxprocesses 4 \
		--dist loadfile tests/unit/compile tests/unit/xla/compile tests/cli/test_compile.py \
		tests/cli/test_compiled.py tests/cli/test_validate.py tests/validation/test_blocks.py \
		tests/unit/prediction/figures/test_breakdown_compiled.py \
		tests/unit/prediction/figures/test_communication_axes.py \
		tests/unit/study/test_bounds.py tests/unit/study/test_evaluate_kept_caches.py \
		tests/browser/test_app_compiled.py

$(COMPILERS)/installed: pyproject.toml requirements/compilers.lock
	test -e $(COMPILERS)/bin/python || $(PYTHON) -m venv $(COMPILERS)
	$(COMPILERS)/bin/python -m pip install --quiet --requirement requirements/compilers.lock
	$(COMPILERS)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

# What records steps of PyTorch: torch's CPU build and Triton have a place of their own (1.7 GB).
TORCH := .venv-torch
test-torch: $(TORCH)/installed
	$(TORCH)/bin/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile tests/unit/torch \
		tests/unit/sources/test_torch_step.py tests/unit/sources/test_torch_module.py

$(TORCH)/installed: pyproject.toml requirements/compilers.lock requirements/torch.txt
	test -e $(TORCH)/bin/python || $(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet --requirement requirements/torch.txt
	$(TORCH)/bin/python -m pip install --quiet --constraint requirements/compilers.lock \
		hypothesis pytest pytest-benchmark pytest-xdist sybil --editable .
	touch $@

# Damaged files for every reader, for so many minutes; those that fail are kept in fuzz-failures/.
MINUTES ?= 5
SEED ?= 0
fuzz: .venv/dev-installed
	PYTHONPATH=tests:validation $(BIN)/python -m fuzz --minutes $(MINUTES) --seed $(SEED)

# Programs drawn at random, held against laws and XLA's own counts; with COMPILERS installed
# (make .venv-compilers/installed), also as they are compiled for GPUs.
programs: .venv/dev-installed
	PYTHONPATH=tests:src $(firstword $(wildcard $(COMPILERS)/bin/python) $(BIN)/python) \
		-m random_programs --minutes $(MINUTES) --seed $(SEED)

# Faults of disks, signals, memory and other programs, while commands run (a C compiler is used).
ROUNDS ?= 3
faults: .venv/dev-installed
	PYTHONPATH=tests:validation $(BIN)/python -m faults --rounds $(ROUNDS) --seed $(SEED)

# Known vulnerabilities of what is locked, by advisories in OSV's format (validation/audit.py).
ADVISORIES ?= all.zip
audit: .venv/dev-installed
	$(BIN)/python validation/audit.py $(ADVISORIES)

# The documentation site, built strictly into site/. Its tools have a place of their own.
docs: $(DOCS)/installed .venv/run-installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict

docs-serve: $(DOCS)/installed .venv/run-installed
	$(DOCS)/bin/mkdocs serve

$(DOCS)/installed: requirements/docs.lock
	test -e $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --requirement requirements/docs.lock
	touch $@

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/run-installed: .venv/bin/python pyproject.toml requirements/run.lock
	test -e .venv/dev-installed || $(BIN)/python -m pip install --quiet --constraint requirements/run.lock .
	touch $@

# Without it the demo predicts the program uncompiled, and says so.
.venv/compiler-installed: .venv/run-installed requirements/compilers.lock
	$(BIN)/python -m pip install --quiet --only-binary :all: \
		--constraint requirements/compilers.lock jax-cuda12-pjrt nvidia-cuda-nvcc-cu12 \
		&& touch $@ || echo "XLA's compiler for GPUs cannot be installed here."

.venv/dev-installed: .venv/bin/python pyproject.toml requirements/dev.lock
	$(BIN)/python -m pip install --quiet --requirement requirements/dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	$(BIN)/python -m compileall -q src
	touch $@

lock: .venv/dev-installed
	$(BIN)/uv pip compile --quiet --universal --no-emit-index-url --no-header pyproject.toml \
		--output-file requirements/run.lock
	$(BIN)/uv pip compile --quiet --universal --no-emit-index-url --no-header pyproject.toml \
		--group dev --output-file requirements/dev.lock
	$(BIN)/uv pip compile --quiet --universal --no-emit-index-url --no-header pyproject.toml \
		--extra gpu --extra tpu --group compilers --output-file requirements/compilers.lock
	$(BIN)/uv pip compile --quiet --universal --no-emit-index-url --no-header \
		--group docs --output-file requirements/docs.lock

# SimGrid, an independent judge of how links are shared (docs/evidence/simgrid.md), in an environment of its
# own. Nothing else needs it. Its build takes g++, cmake, Boost's headers and ten minutes of CPU time,
# and pybind11 before version 3.
simgrid: .venv/dev-installed .simgrid/installed
	$(BIN)/python validation/simgrid_judge.py

.simgrid/installed:
	$(PYTHON) -m venv .simgrid
	echo 'pybind11<3' > .simgrid/constraints.txt
	PIP_CONSTRAINT=$(CURDIR)/.simgrid/constraints.txt \
		.simgrid/bin/python -m pip install --quiet simgrid==4.1
	touch $@

clean:
	rm -rf .venv .simgrid $(TORCH) $(COMPILERS) $(DOCS) site
