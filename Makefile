# Needs python3 (3.11 or newer), pip and make; everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
EXAMPLE := examples/llama3_100m_fsdp4.mlir

.PHONY: demo test lock clean

demo: .venv/run-installed
	$(BIN)/hespas run $(EXAMPLE) --node A100_SXM_40GB --system A100_SXM_40GB_4GPU

test: .venv/dev-installed
	PATH="$(CURDIR)/$(BIN):$$PATH" ./check full

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/run-installed: .venv/bin/python pyproject.toml requirements/run.lock
	test -e .venv/dev-installed || $(BIN)/python -m pip install --quiet --constraint requirements/run.lock .
	touch $@

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

clean:
	rm -rf .venv
