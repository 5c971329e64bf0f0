# The whole of it on a fresh machine with python3 and make:
#   make serve    sets up .venv on first use, then starts the server
#   make test     sets up .venv on first use, then runs the tests

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup serve test check format clean

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1\t/p' Makefile | expand -t 16

setup: $(READY) ## the environment in .venv, with the vivace command in it
	@echo "make: $(VENV) is ready; the command is $(BIN)/vivace"

serve: $(READY) ## start the server; options in ARGS="--port 9000"
	@$(BIN)/vivace serve $(ARGS)

test: $(READY) ## run the tests; a part of them with ARGS="tests/text"
	@$(BIN)/python -m pytest $(ARGS)

check: $(READY) ## format, lint, types, structure
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python scripts/check_structure.py

format: $(READY) ## rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove the environment, caches and builds
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so a set-up that was interrupted starts again.
$(READY): pyproject.toml constraints.txt scripts/make_venv.sh
	@sh scripts/make_venv.sh $(PYTHON) $(VENV)
	@touch $@
