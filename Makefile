PYTHON ?= python3
# Tests mostly wait for servers: twice as many as cores.
JOBS ?= 4
REPOS ?=

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup
REAL := $(BIN)/python tests/servers/kafka.py --

.DEFAULT_GOAL := help
.PHONY: help setup up test test-real lint format bench clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: .venv/.installed ## Create .venv with everything (again when pyproject.toml changes)

.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

up: setup ## Run the whole system on embedded servers (REPOS="path ...": git repositories to count)
	$(BIN)/counters up $(REPOS)

test: setup ## Run all tests on embedded servers
	$(PYTEST) tests

test-real: setup ## Run the tests that need servers on Apache Kafka (Java, Maven) and the installed redis-server
	@test -n "$$REDIS_URL" || command -v redis-server >/dev/null || { echo "make test-real: install redis-server or set REDIS_URL" >&2; exit 2; }
	$(REAL) $(PYTEST) tests/integration tests/faults tests/contract

lint: setup ## Check style, types, the imports between rooms, and that the reference docs are fresh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m counters.cli.docs --check
	$(BIN)/python -m counters.api.openapi --check

format: setup ## Rewrite the code in the common style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Print the comparison table (on Apache Kafka, or on KAFKA_BOOTSTRAP_SERVERS)
	$(REAL) $(BIN)/python -m bench

clean: ## Remove everything that the other targets made
	rm -rf .venv .swh-venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build tests/servers/lib bench/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
