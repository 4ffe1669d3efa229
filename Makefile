# Everything here needs Python 3.11 or newer and make, nothing else.
#   make demo    set up, then compare the five small variants that ship, offline
#   make test    set up, then run all tests
#   make lint    ruff and mypy
#   make bench   speed and memory, as ratios
#   make digits-zoo   train the variants that ship again (about 12 minutes on two cores)
#   make browser install Debian's chromium and its driver, for the tests of the report's page
# VENV=DIR puts the virtual environment elsewhere; PYTHON=PATH chooses the interpreter.

VENV ?= .venv
DEMO ?= runs/demo
VARIANTS := $(foreach v,ape spe rope none rpt,digits_$(v)_s0)
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
NEEDED := import sys; sys.exit(sys.version_info < (3, 11))

.PHONY: demo digits-zoo test lint bench browser setup clean

demo: setup
	@HF_HUB_OFFLINE=1 $(BIN)/probe ssdc $(VARIANTS) --rpi-draws 4 --runs $(DEMO) --out $(DEMO)/ssdc
	@HF_HUB_OFFLINE=1 $(BIN)/probe fragility $(VARIANTS) --runs $(DEMO) --out $(DEMO)/fragility

digits-zoo: setup
	@$(BIN)/probe train all --recipe digits --seeds 0,1,2 --jobs 2
	@$(BIN)/python -m train.ship runs/digits --to weights/digits

test: setup
	@$(BIN)/python -m pytest -q --durations=10

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: setup
	@$(BIN)/python -m benchmarks

browser:
	@set -e; \
	if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then \
		echo "apt-get was not found; install chromium and chromedriver by hand" >&2; \
		exit 1; \
	fi; \
	as=; if [ "$$(id -u)" != 0 ]; then as=sudo; fi; \
	$$as apt-get update -qq; \
	$$as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver

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
