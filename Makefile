# On a fresh machine: `make demo`, `make test` and `make docs`. Each installs into .venv first.
# OPTIONS go to the demo's command: make demo OPTIONS='--set training.precision=bfloat16 --out runs/bfloat16'
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint docs clean

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "farfield needs Python 3.11 or newer, this is %s; set PYTHON=..." % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/farfield reproduce swe --preset quick $(OPTIONS)

test: $(VENV)/installed lint
	$(BIN)/pytest --numprocesses 2 --dist worksteal

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# OMP_NUM_THREADS=1: its snippets are small, and threads would wait for one another
docs: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,docs]'
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build --fail-on-warning --quiet -b html docs docs/_build/html
	@echo "see docs/_build/html/index.html"

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache docs/_build docs/generated
