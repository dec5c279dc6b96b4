# Everything needs only Python 3.11+ and Java 17; the rest is set up in .venv and in the user's cache.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The Spark that this working copy is developed with.
SPARK  := pyspark~=4.2.0

# Without files of compiled code each of the hundreds of programs of a test run compiles the library.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-all test-nightly test-matrix lint lint-style lint-types lint-wording docs bench mutants chaos chaos-store chaos-log chaos-queue clean

help: ## show what there is to do
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(VENV)/.ready-demo: pyproject.toml Makefile
	@echo "==> virtual environment and dependencies in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[spark,demo]' '$(SPARK)'
	@echo "==> jars of Kafka, of Spark's Kafka source and of Delta"
	@$(BIN)/python -m coopconsume.testing.local.jars
	@echo "==> an archive of Spark's classes, with which its JVMs start faster"
	@$(BIN)/python -m coopconsume.testing.local.class_data
	@touch $@

$(VENV)/.ready: $(VENV)/.ready-demo
	@echo "==> tools for tests, notebooks and checks"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[spark,demo,notebook,dev,docs]' '$(SPARK)'
	@echo "==> the Azure emulator of the tests"
	@-$(BIN)/python -m tests.azurite
	@echo "==> the YARN of the tests"
	@$(BIN)/python -m tests.yarn
	@echo "==> an archive of Kafka's classes, with which the brokers of the tests start faster"
	@$(BIN)/python -m tests.jvm
	@touch $@

setup: $(VENV)/.ready ## set up the virtual environment with all tools

demo: $(VENV)/.ready-demo ## 10,000 flights through 4 slots on a real Kafka, killed in the middle
	@$(BIN)/coopconsume demo $(ARGS)

# Three processes more than CI has cores: tests of Spark, programs and the broker mostly wait.
PYTEST := $(BIN)/python -m pytest -n 5 --dist loadscope

test: $(VENV)/.ready ## set up and run the tests, except the slow ones (ARGS='-k name' narrows)
	@$(PYTEST) -m 'not slow' --durations=0 --durations-min=10 $(ARGS); status=$$?; \
	echo "Slow tests were left out: make test-slow runs them, make test-all runs all tests."; \
	exit $$status

test-slow: $(VENV)/.ready ## run the slow tests: kills, clusters, all that takes over 10 s (ARGS='-k name' narrows)
	@$(PYTEST) -m 'slow and not nightly' $(ARGS)

test-all: $(VENV)/.ready ## run all tests but the nightly ones, as CI does (ARGS='-k name' narrows)
	@$(PYTEST) -m 'not nightly' $(if $(CI),--durations=40) $(ARGS)

test-nightly: $(VENV)/.ready ## run the tests that .ci/scheduled runs every night (ARGS='-k name' narrows)
	@$(PYTEST) -m nightly $(ARGS)

test-matrix: $(VENV)/.ready ## run a selection of the tests on each supported Spark (ARGS='4.2 --kafka 4.3.1')
	@$(BIN)/python -m tests.matrix $(ARGS)

lint: $(VENV)/.ready ## check the code (ruff, mypy strict), the wording and the documentation
	@$(MAKE) -s -j 2 lint-types docs lint-style lint-wording

lint-style: $(VENV)/.ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

lint-types: $(VENV)/.ready
	@$(BIN)/mypy

lint-wording: $(VENV)/.ready
	@$(BIN)/python -m tests.language

docs: $(VENV)/.ready ## build the documentation site in build/docs; a dead link is an error
	@$(BIN)/python -m sphinx -q -W -n --keep-going docs build/docs

bench: $(VENV)/.ready ## print the benchmark tables, both sides in turn
	@$(BIN)/python -m tests.bench $(ARGS)

mutants: $(VENV)/.ready ## plant faults one by one and see that tests fail (ARGS='-k name' narrows, --fast, --list)
	@$(BIN)/python -m tests.mutants $(ARGS)

chaos: $(VENV)/.ready ## three applications under rounds of disturbances (ROUNDS=n SEED=s KINDS=a,b MODE=batches|real-time|state|cooperative|cooperative-real-time)
	@$(BIN)/python -m tests.chaos --rounds $(or $(ROUNDS),5) $(if $(SEED),--seed $(SEED)) $(if $(KINDS),--kinds $(KINDS)) $(if $(MODE),--mode $(MODE))

chaos-store: $(VENV)/.ready ## writers of a commit table are killed and frozen, 10,000 logs folded, 100,000 schedules played (ROUNDS=n SEED=s)
	@$(BIN)/python -m tests.chaos.store --rounds $(or $(ROUNDS),20) $(if $(SEED),--seed $(SEED))
	@LOGS=10000 SCHEDULES=100000 $(BIN)/python -m pytest -q tests/model/test_commits_fold.py tests/model/test_delta_log.py --timeout 7200 --hypothesis-profile fresh

chaos-log: $(VENV)/.ready ## three fenced writers compete for a log under disturbances (ROUNDS=n SEED=s KINDS=a,b)
	@$(BIN)/python -m tests.chaos.log --rounds $(or $(ROUNDS),20) $(if $(SEED),--seed $(SEED)) $(if $(KINDS),--kinds $(KINDS))

chaos-queue: $(VENV)/.ready ## consumers of a work queue of 1 and of 3 replicas under disturbances (ROUNDS=n SEED=s KINDS=a,b)
	@$(BIN)/python -m tests.chaos.queue --rounds $(or $(ROUNDS),8) $(if $(SEED),--seed $(SEED)) $(if $(KINDS),--kinds $(KINDS))

clean: ## remove the virtual environment and caches of this folder
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
