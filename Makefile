# Two commands on a fresh machine: `make demo` and `make test`. Both install into .venv first.
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
	$(BIN)/pytest --numprocesses 2

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
