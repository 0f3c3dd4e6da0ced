# Everything starts here: `make quickstart` to see it work, `make test` and `make check` before a commit.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup quickstart test test-all test-device check fix docs reference results wheel bench fuzz clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	$(BIN)/python -c "import torch; print('torch', torch.__version__)"
	touch $(STAMP)

quickstart: $(STAMP)
	$(BIN)/segtailor tailor --out runs/quickstart

test: $(STAMP)
	$(BIN)/python -m pytest

test-all: $(STAMP)
	$(BIN)/python -m pytest -m "not device" -o timeout=900

test-device: $(STAMP)
	$(BIN)/python -m pytest -n 0 -m device -o timeout=900

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src tests docs benchmarks examples tools README.md CHANGELOG.md CONTRIBUTING.md

fix: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)
	$(BIN)/zensical build --clean --strict

reference: $(STAMP)
	$(BIN)/python tools/write_reference.py

results: $(STAMP)
	$(BIN)/python -m tools.write_results

wheel: $(STAMP)
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

bench: $(STAMP)
	$(BIN)/python -m benchmarks.data_throughput
	$(BIN)/python -m benchmarks.interpreter_overhead

fuzz: $(STAMP)
	$(BIN)/python tools/fuzz.py

clean:
	rm -rf $(VENV) build dist site .cache .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
