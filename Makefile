# Two commands on a fresh machine do all the set-up: `make quickstart` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One worker more than cores: some tests wait for a process or a clock.
WORKERS ?= 3
# One thread a process: test workers would otherwise fight over the cores. Compiled files are kept: each of
# the many processes that tests start would otherwise compile the package again.
ENV := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_DISABLE_TELEMETRY=1

.DEFAULT_GOAL := help
.PHONY: help install quickstart test static unit test-all faults oracles check check-all docs format bench audit clean package

help:  ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# torch comes first and by its exact version, so that no other package pulls a newer one with gigabytes of GPU libraries.
$(BIN)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "holdfast needs Python 3.11 or newer, this is %s" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $$(grep -E '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(BIN)/.test-tools: $(BIN)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,docs]'
	@touch $@

install: $(BIN)/.installed  ## make .venv and install holdfast

quickstart: $(BIN)/.installed  ## see forgetting, and what keeps it small, in about a minute
	$(BIN)/holdfast quickstart

test: $(BIN)/.test-tools  ## static checks and the test suite, side by side (no GPU, no network)
	@$(MAKE) --no-print-directory --jobs 2 static unit

static: $(BIN)/.test-tools  ## the static checks alone
	$(BIN)/ruff check src tests checks examples benchmarks docs/*.py docs/pictures
	$(BIN)/ruff format --check --quiet src tests checks examples benchmarks docs/*.py docs/pictures
	$(BIN)/mypy --no-error-summary

unit: $(BIN)/.test-tools  ## the test suite alone
	$(ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow and not gpu and not network'

test-all: $(BIN)/.test-tools  ## the slow tests too
	$(ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not gpu and not network'

check-all: oracles  ## what is no unit test: oracles, promises, docs, recipes, benchmark scripts, faults
	$(ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow and not gpu and not network' checks

docs: $(BIN)/.test-tools  ## the documentation as a site, in site/
	$(BIN)/python docs/site.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

faults: $(BIN)/.test-tools  ## 2,000 generated faults in what comes in, and 40 kills; at most 20 minutes of two cores
	$(ENV) PYTHONPATH=src:tests:checks:checks/faults $(BIN)/python -m fuzz

package: $(BIN)/.test-tools  ## sdist and wheel, and the wheel with all it needs in a clean environment, which it runs in
	rm -rf dist && $(BIN)/python -m build --no-isolation
	rm -rf dist/clean && $(PYTHON) -m venv dist/clean
	dist/clean/bin/python -m pip install --quiet $$(grep -E '^torch==' constraints.txt)
	dist/clean/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd dist && $(ENV) clean/bin/holdfast quickstart --quick --output_dir quickstart

OLD_SRC ?=

oracles: $(BIN)/.test-tools  ## what a restructuring must leave as it is: pages, claims, jobs, names, requests; weights with OLD_SRC=PATH
	$(ENV) $(BIN)/python checks/oracles/compare.py
	$(ENV) PYTHONPATH=src $(BIN)/python checks/reference/record.py --check $(if $(OLD_SRC),--old-src $(OLD_SRC)) || test $$? -eq 2

format: $(BIN)/.test-tools  ## format and fix what ruff can
	$(BIN)/ruff check --fix src tests checks examples benchmarks docs/*.py docs/pictures
	$(BIN)/ruff format src tests checks examples benchmarks docs/*.py docs/pictures

bench: $(BIN)/.installed  ## the benchmarks with their bars
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/annealing_op.py --check
	$(BIN)/python benchmarks/train_step.py --check
	$(BIN)/python benchmarks/merge.py --check
	$(BIN)/python benchmarks/methods.py --check
	$(BIN)/python benchmarks/budget.py --check
	$(BIN)/python benchmarks/evaluation.py --check
	$(BIN)/python benchmarks/selection.py --check
	$(BIN)/python benchmarks/sweep.py --check
	$(BIN)/python benchmarks/packing.py --check
	$(BIN)/python benchmarks/self_replay.py --check
	$(BIN)/python benchmarks/gate.py --check
	$(BIN)/python benchmarks/start_up.py --check
	$(BIN)/python benchmarks/check.py --check

# In an environment of its own: nothing of pip-audit's belongs to what is audited.
$(VENV)-audit/.installed: checks/audit.py
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet 'pip-audit>=2.10,<3'
	@touch $@

audit: $(VENV)-audit/.installed  ## the pinned versions against the published vulnerabilities (asks the package index)
	$(VENV)-audit/bin/python checks/audit.py

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) $(VENV)-audit site .pytest_cache .mypy_cache .ruff_cache build dist
