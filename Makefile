# From a fresh clone, `make train` is enough: it needs make and Python 3.11, 3.12 or 3.13, and pip's way to its packages.
#
#   make train ARGS="--env CartPole-v1 --workers 4"
#   make test
#   make bench-dqn_speed ARGS="--repeats 5"

# The first Python on the path that will do; say `make PYTHON=...` to choose another.
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,\
	$(shell $(name) -c 'import sys; (3, 11) <= sys.version_info < (3, 14) and print("$(name)")' 2>/dev/null)))
ARGS ?=
# Tests that run at once. Many of them start processes of their own, so more than a few gain little.
PROCESSES ?= 2

VENV := .venv
PEERS := .venv-bench
BIN := $(VENV)/bin
# A stamp lies inside the environment that it vouches for, so that they go together.
INSTALLED := $(VENV)/.installed
PEERS_INSTALLED := $(PEERS)/.installed

BENCHES := update_cost conv_update startup dqn_speed ppo_speed scaling without_centre split time_to_solve replay_vs_cpprb \
	replay_memory remote_envs joint_speed joint_memory joint_procgen tetris atari_speed breakout_speed first_lessons awr dyna
# Studies of learning: hours of both cores, and each goes on where it stopped.
STUDIES := anywhere workers holds solved identical
WITH_PEERS := dqn_speed ppo_speed breakout_speed time_to_solve

.DEFAULT_GOAL := help
.PHONY: help install train test test-isa lint mutants format bench clean
.DELETE_ON_ERROR:
# Two measurements at once would measure each other.
.NOTPARALLEL:

help: ## Show this list.
	@echo "make <target> [ARGS=...]"
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  benches: $(BENCHES) presets"
	@echo "  studies: $(STUDIES) search"

install: $(INSTALLED) ## Install passel with all it can use and its tests' tools into .venv (once).

train: $(INSTALLED) ## Train an agent in little time: passel train --tune-for seconds $(ARGS).
	@$(BIN)/passel train --tune-for seconds $(ARGS)

test: lint ## Check style and types, then run the tests: what CI runs.
	@echo "pytest"
	@$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal $(ARGS)

test-isa: $(INSTALLED) ## Run the tests of arithmetic at every instruction set up to this processor's (ARGS=tests: all).
	@$(BIN)/python tests/isa.py $(ARGS)

lint: $(INSTALLED) ## Check style and types.
	@echo "ruff check";  $(BIN)/ruff check --quiet .
	@echo "ruff format"; $(BIN)/ruff format --check --quiet . || { echo "Run: make format" >&2; exit 1; }
	@echo "mypy";        $(BIN)/mypy --no-error-summary

mutants: $(INSTALLED) ## Break the code on purpose, and see the tests fail: make mutants ARGS="folder fsync".
	@$(BIN)/python tests/mutants/run.py $(ARGS)

format: $(INSTALLED) ## Mend style where that can be done without thinking.
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

bench: $(INSTALLED) $(PEERS_INSTALLED) $(addprefix bench-,$(BENCHES)) ## Measure everything that is published again (about three hours; leave the machine alone).

bench-%: $(INSTALLED) ## Measure one thing: make bench-dqn_speed.
	@$(BIN)/python bench/$*.py $(if $(filter $*,$(WITH_PEERS)),--peers-python $(PEERS)/bin/python) $(ARGS)

$(addprefix bench-,$(WITH_PEERS)): $(PEERS_INSTALLED)

# They run where the peers and their environments are: one looks into cpprb's memory and ours in one process.
IN_PEERS := replay_vs_cpprb anywhere search identical
$(addprefix bench-,$(IN_PEERS)): bench-%: $(PEERS_INSTALLED)
	@$(PEERS)/bin/python bench/$*.py $(ARGS)

clean: ## Remove what make made; runs/ stays.
	rm -rf $(VENV) $(PEERS) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): EXTRAS := all,test
$(PEERS_INSTALLED): EXTRAS := atari,box2d,fast,study,bench

# The stamp is the last thing that is made: an interrupted install is begun again by the next.
%/.installed: pyproject.toml constraints.txt
	@rm -f $@
	@test -n "$(PYTHON)" || { echo "passel needs Python 3.11, 3.12 or 3.13: install one, or say make PYTHON=/path/to/it." >&2; exit 1; }
	@$*/bin/python -m pip --version >/dev/null 2>&1 || { echo "Making $* with $$($(PYTHON) --version)"; $(PYTHON) -m venv --clear $*; }
	@echo '*' > $*/.gitignore
	@echo "Installing passel[$(EXTRAS)] into $* (some minutes the first time)"
	@$*/bin/python -m pip install --quiet --upgrade pip
	@$*/bin/python -m pip install --quiet --no-deps -c constraints.txt torch
	@$*/bin/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@
	@echo "Installed: $$($*/bin/passel --version)"
