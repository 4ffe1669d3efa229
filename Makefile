# Everything here needs Python 3.11 or newer and make, nothing else.
#   make demo    set up, then run the main job offline on a small model that it trains itself
#   make test    set up, then run all tests
#   make lint    ruff and mypy
#   make bench   speed and memory, as ratios
# VENV=DIR puts the virtual environment elsewhere; PYTHON=PATH chooses the interpreter.

VENV ?= .venv
DEMO ?= runs/demo
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
NEEDED := import sys; sys.exit(sys.version_info < (3, 11))

.PHONY: demo test lint bench setup clean

demo: setup
	@$(BIN)/python -m train.digits_demo --out $(DEMO)
	@HF_HUB_OFFLINE=1 $(BIN)/probe ssdc $(DEMO)/digits-vit --data digits --out $(DEMO)/ssdc

test: setup
	@$(BIN)/python -m pytest -q --durations=10

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: setup
	@$(BIN)/python -m benchmarks

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@set -e; found=; \
	for python in $(or $(PYTHON),python3.11 python3.12 python3.13 python3); do \
		if $$python -c '$(NEEDED)' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "Python 3.11 or newer is needed and was not found as" \
			"'$(or $(PYTHON),python3.11 or python3)'; name one with make PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi; \
	echo "setting up $(VENV) (a few minutes the first time)"; \
	$$found -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
