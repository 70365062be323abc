# Everything runs in an environment of its own (.venv), made once and pinned by requirements.lock.
# Only Python 3.11 to 3.14 and Java 17 have to be there.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?=
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.kafka-migration-env
# Spark's executors must use the same Python as the driver.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python
export NO_MKDOCS_2_WARNING := 1
# Tests, demo and benchmarks start hundreds of Python processes; where the shell forbids bytecode files, each of them
# compiles all of Airflow again, which is half of the processor time of its start.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest
PYTEST_ARGS ?=
# Tests wait for brokers more than they compute: two workers, each with its own brokers. WORKERS=0: all in one process.
WORKERS ?= 2
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Random faults of `make soak`, on a target of one broker and of three.
FAULTS ?= 300
FAULTS_ON_THREE ?= 60
SEED ?=
ROOM ?=
# Of `make soak`: the parts to run, all without it; `help` lists them.
PART ?=

# Folders of the package of which the unit tests reach at least this percentage of lines.
COVERED := copy phases
COVERED_PERCENT := 75

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  %-18s %s\n", $$1, $$2 }'

.PHONY: env
env: $(STAMP) ## Make the environment (.venv), once; PYTHON=... chooses the Python

$(STAMP): requirements.lock pyproject.toml scripts/bootstrap.sh
	@bash scripts/bootstrap.sh $(VENV) $(PYTHON)
	@touch $@

.PHONY: java
java:
	@bash scripts/check_java.sh

.PHONY: jars
jars: env java ## Fetch Kafka's jars and Apicurio into the user's cache and check them; both start offline afterwards
	@$(BIN)/python -m harness.jars.kafka_jars
	@$(BIN)/python -m harness.registries
	@$(BIN)/python -m harness.jars.spark_kafka_jars

.PHONY: demo
demo: env java ## Migrate a live cluster on this machine, end to end (APPROVE=manual, KEEP=1, WAY_BACK=1)
	@$(BIN)/python -m demo

.PHONY: mirror-demo
mirror-demo: env java ## Two clusters mirror each other, and consumer groups fail over: records read again or skipped (KEEP=1)
	@$(BIN)/python -m demo.mirrors

.PHONY: test
test: env java ## All tests but the soak runs
	$(PYTEST) $(PARALLEL) -m "not soak" $(PYTEST_ARGS)

.PHONY: test-fast
test-fast: env ## Unit tests only: no broker; checks the coverage unless PYTEST_ARGS selects tests
ifeq ($(PYTEST_ARGS),)
	@bash scripts/test_fast.sh $(BIN)/python $(COVERED_PERCENT) $(COVERED)
else
	$(PYTEST) $(PARALLEL) -m "not integration and not e2e and not soak and not slow" $(PYTEST_ARGS)
endif

.PHONY: test-integration
test-integration: env java ## Tests against real brokers
	$(PYTEST) $(PARALLEL) -m "integration and not soak" $(PYTEST_ARGS)

.PHONY: test-e2e
test-e2e: env java ## The DAG in a real Airflow
	$(PYTEST) -m "e2e and not soak" $(PYTEST_ARGS)

# The hooks of the Google provider, without its more than a hundred other libraries: they contradict the lock.
ENGINES_VENV ?= .venv-engines
ENGINES_STAMP := $(ENGINES_VENV)/.kafka-migration-engines

$(ENGINES_STAMP): requirements.lock pyproject.toml scripts/bootstrap.sh tests/engines/requirements.txt
	@bash scripts/bootstrap.sh $(ENGINES_VENV) $(PYTHON)
	@$(ENGINES_VENV)/bin/uv pip install --quiet --python $(ENGINES_VENV)/bin/python --no-deps --require-hashes \
	  -r tests/engines/requirements.txt
	@touch $@

.PHONY: test-engines
test-engines: $(ENGINES_STAMP) ## Spark engines on the real hooks of all providers, in an environment of their own
	ALL_PROVIDERS=1 $(ENGINES_VENV)/bin/python -m pytest tests/engines $(PYTEST_ARGS)

# Celery, and the drivers of PostgreSQL and Redis; the servers themselves are those of the system.
CELERY_VENV ?= .venv-celery
CELERY_STAMP := $(CELERY_VENV)/.kafka-migration-celery

$(CELERY_STAMP): requirements.lock pyproject.toml scripts/bootstrap.sh tests/e2e/celery-requirements.txt
	@bash scripts/bootstrap.sh $(CELERY_VENV) $(PYTHON)
	@$(CELERY_VENV)/bin/uv pip install --quiet --python $(CELERY_VENV)/bin/python --no-deps --require-hashes \
	  -r tests/e2e/celery-requirements.txt
	@touch $@

.PHONY: test-celery
test-celery: $(CELERY_STAMP) java ## A migration in an Airflow with PostgreSQL, Redis and Celery workers, which must be installed
	ON_CELERY=1 $(CELERY_VENV)/bin/python -m pytest -m soak tests/e2e/test_on_celery.py $(PYTEST_ARGS)

.PHONY: bench
bench: env java ## Compare the copiers on the same brokers and data; results in benchmarks/results
	$(BIN)/python -m benchmarks

.PHONY: bench-groups
bench-groups: env java ## Consumer groups through MirrorMaker 2 and through us: records read again or skipped
	$(BIN)/python -m benchmarks.groups

.PHONY: bench-idle
bench-idle: env java ## What 1,000 partitions that bring nothing cost eight busy ones: latency and processor time
	$(BIN)/python -m benchmarks.idle

.PHONY: bench-metrics
bench-metrics: env ## What metrics cost a copier, per append and per sample
	$(BIN)/python -m benchmarks.metrics

.PHONY: bench-schemas
bench-schemas: env ## A copy of 3,000 subjects between registries, and a plain script that does the same requests
	$(BIN)/python -m benchmarks.schemas

.PHONY: bench-lanes
bench-lanes: env ## Planning and lanes for 10,000 partitions with simulated metadata: seconds and peak memory
	$(BIN)/python -m benchmarks.lanes

.PHONY: soak
soak: env java ## Long random fault runs (hours); PART=help lists its parts, SEED=N repeats one, FAULTS=N changes how many
	@SEED="$(SEED)" FAULTS=$(FAULTS) FAULTS_ON_THREE=$(FAULTS_ON_THREE) PYTEST_ARGS="$(PYTEST_ARGS)" \
	  $(BIN)/python scripts/soak.py $(PART)

.PHONY: lint
lint: env ## ruff, mypy, import-linter, strict build of the docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --site-dir build/site

.PHONY: format
format: env ## Let ruff format and fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: mutants
mutants: env ## Deliberate bugs, and which unit test finds each (ROOM=freeze: those of one file of tests/mutants)
	@$(BIN)/python scripts/mutants.py --room "$(ROOM)"

.PHONY: walk
walk: env ## Follow a function's calls through the folders of the package: FROM=phases.final_drain:run
	@$(BIN)/python scripts/walk.py $(FROM)

.PHONY: docs
docs: env ## Build the documentation into build/site
	$(BIN)/python scripts/generate_docs.py
	$(BIN)/mkdocs build --strict --site-dir build/site

.PHONY: lock
lock: ## Resolve pyproject.toml again into requirements.lock (UPGRADE=1 takes newer versions)
	@test -x $(BIN)/uv || bash scripts/bootstrap.sh $(VENV) $(PYTHON)
	$(BIN)/uv pip compile pyproject.toml --quiet --extra dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --no-annotate $(if $(UPGRADE),--upgrade) -o requirements.lock
	$(BIN)/uv pip compile tests/engines/requirements.in --quiet --no-deps --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --no-annotate $(if $(UPGRADE),--upgrade) \
	  -o tests/engines/requirements.txt
	$(BIN)/uv pip compile tests/e2e/celery-requirements.in --quiet --no-deps --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --no-annotate $(if $(UPGRADE),--upgrade) \
	  -o tests/e2e/celery-requirements.txt

.PHONY: clean
clean: ## Remove what builds and runs leave behind
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse
	find . -name __pycache__ -not -path './$(VENV)/*' -type d -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## Remove the environment too
	rm -rf $(VENV) $(ENGINES_VENV)
