# On a fresh clone: `make train` trains the default experiment, `make test` runs the tests.
# Both set up .venv first, once. PYTHON=... chooses the interpreter (3.11 to 3.13).

VENV := .venv
BIN := $(VENV)/bin
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3 python3.12 python3.13 python3.11 python)
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help train test test-all check bench format clean
.DEFAULT_GOAL := help

help:
	@echo "make train     set up, and train the default experiment"
	@echo "make test      set up, check the code and run the tests"
	@echo "make test-all  the same with the slow tests"
	@echo "make check     ruff, pyright and import-linter"
	@echo "make bench     compare the speed with tf_keras and Keras"
	@echo "make clean     remove .venv and caches"

train: $(VENV)/.installed
	$(BIN)/python -m kdist

# Two processes share the tests; all that start clusters go to one of them (tests/conftest.py). A
# process sets TensorFlow's devices once: tests/engine comes first. And it connects to one cluster
# once: what trains on one has processes without other suites.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup
CONNECTED := tests/ps tests/between_graph
OTHERS := tests/engine tests $(CONNECTED:%=--ignore=%)

test: check
	$(PYTEST) -m "not slow" $(OTHERS)
	$(PYTEST) -m "not slow" $(CONNECTED)

test-all: check
	$(PYTEST) $(OTHERS)
	$(PYTEST) $(CONNECTED)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache build dist

$(VENV)/.made:
	@for python in $(CANDIDATES); do \
		if "$$python" -c "$(FITS)" 2>/dev/null; then \
			echo "Setting up $(VENV) with $$("$$python" --version)."; \
			"$$python" -m venv $(VENV) && touch $@; exit $$?; \
		fi; \
	done; \
	echo "kdist needs Python 3.11 to 3.13. Received: $$($(firstword $(CANDIDATES)) --version 2>&1 | head -n 1)." \
		"Name one that fits: make PYTHON=/path/to/python3.12" >&2; exit 2

$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e ".[dev]"
	@touch $@
