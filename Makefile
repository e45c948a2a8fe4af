# `make tune` is the whole road; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
JOB ?= examples/quickstart.yaml

bin := $(VENV)/bin
installed := $(VENV)/.installed
# root may make network namespaces and control groups; anyone else tests without them
system := $(if $(filter 0,$(shell id -u)),, and not system)

.PHONY: help env tune test test-all lint docs gate figures bench clean

help: ## what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

env: $(installed) ## the virtual environment, with everything in it

$(installed): pyproject.toml constraints.txt
	test -x $(bin)/python || $(PYTHON) -m venv $(VENV)
	$(bin)/python -m pip install --quiet --upgrade pip
	$(bin)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

tune: env ## find the fastest DeepSpeed configuration on this machine (JOB=your.yaml)
	$(bin)/pretune tune $(JOB)

test: env ## the tests, real trials included, but not those that take minutes each
	$(bin)/python -m pytest -n 2 --dist loadfile -m 'not long$(system)'

test-all: env ## every test
	$(bin)/python -m pytest

lint: env ## style and types
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy

docs: export NO_MKDOCS_2_WARNING = 1

docs: env ## the site, in site/; a link or a name that leads nowhere is an error
	$(bin)/mkdocs build --strict --quiet

figures: env ## the pictures of the documentation, from a real session (tmux and a Chromium)
	$(bin)/python docs/figures.py

gate bench: export OMP_NUM_THREADS = 1 # small matrices: threads cost more than they bring

gate: env ## no prediction may be worse than the committed one by more than its noise
	$(bin)/python benchmarks/prediction.py --gate

bench: env ## what the README's table of measurements is made with
	$(bin)/python benchmarks/cpu_clusters.py
	$(bin)/python benchmarks/prediction.py --gate
	$(bin)/python benchmarks/prediction.py
	$(bin)/python benchmarks/few_trials.py

clean: ## remove what builds and tests leave, but not the environment or any trial
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
