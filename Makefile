# Each target sets up what it needs by itself, from package registries only; a second run takes seconds.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
NATIVE := $(wildcard native/*.py native/*/*.[ch] native/*/*/*.[ch] native/*/*.def)

.PHONY: demo test lint bench docs image lock setup clean

demo: setup
	$(BIN)/gpuplane demo

test: setup lint
	$(BIN)/pytest -n auto --dist loadfile

lint: setup
	$(BIN)/ruff check src tests benchmarks native deploy docs/*.py
	$(BIN)/ruff format --check src tests benchmarks native deploy docs/*.py
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks/run.py

docs: setup
	$(BIN)/uv pip install --quiet --python $(BIN)/python mkdocs-material
	$(BIN)/mkdocs build --strict

image: setup
	$(BIN)/python deploy/image/build.py

lock: setup
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
	    --python-version 3.11 --extra dev --output-file requirements.lock pyproject.toml

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock $(NATIVE)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --allow-empty-requirements requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf $(VENV) build dist site src/gpuplane/_native
