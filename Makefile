# `make demo` and `make test` need only Python: each creates .venv and installs its dependencies there.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE := 1

.PHONY: demo test lint types layers unit examples bench clean

demo: .venv/demo.done
	$(BIN)/python examples/demo.py

test: lint types layers unit examples

lint: .venv/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev.done
	$(BIN)/mypy

layers: .venv/dev.done
	$(BIN)/lint-imports

unit: .venv/dev.done
	$(BIN)/python -m pytest -n 2

examples: .venv/dev.done
	$(BIN)/python examples/run_all.py

bench: .venv/bench.done
	$(BIN)/python -m bench

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo.done: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) install -e '.[demo]'
	touch $@

.venv/dev.done: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) install -e '.[dev]'
	touch $@ .venv/demo.done

.venv/bench.done: .venv/dev.done
	$(PIP) install -e '.[bench]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
