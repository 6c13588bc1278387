# `make demo` and `make test` need only Python: each creates .venv and installs its dependencies there.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE := 1

.PHONY: demo test lint types layers unit examples docs soak bench clean

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

# Two test processes on two cores: threads of torch would only wait for each other.
unit soak: export OMP_NUM_THREADS := 1

# At most five tests that failed are run once more, alone: some bound memory, waits or requests, which another process on
# a loaded machine disturbs. They are listed, and fail the run if they fail again. A crash or more failures end it at once.
unit: .venv/dev.done .venv/azurite.done .venv/axe.done
	$(BIN)/python -m pytest -n 2 --maxfail=6 || { test $$? = 1 && echo "UNSTABLE: the tests that failed are run again, alone" \
		&& $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

soak: .venv/dev.done .venv/azurite.done .venv/axe.done  # long runs: thousands of faults, kills and clusters
	$(BIN)/python -m pytest -m soak

examples: .venv/dev.done
	$(BIN)/python examples/run_all.py

docs: .venv/dev.done  # the documentation site, in build/site/html; warnings are errors. `make test` builds it too
	$(BIN)/python -m website

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

.venv/azurite.done: .venv/bin/python  # Azure's emulator, for tests of az://
	npm install --silent --no-fund --no-audit --prefix .venv/azurite azurite@3.37
	touch $@

.venv/axe.done: .venv/bin/python  # accessibility checks of the viewer's pages
	npm install --silent --no-fund --no-audit --prefix .venv/axe axe-core@4.14
	touch $@

.venv/bench.done: .venv/dev.done
	$(PIP) install -e '.[bench]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
