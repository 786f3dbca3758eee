# Turnstream. `make help` lists what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
INSTALLED := $(VENV)/.installed
MINUTES ?= 10
ROWS ?= --write
PORT ?= 8080
BROKERS ?= 1

.DEFAULT_GOAL := help
.PHONY: help serve secrets cluster test test-cluster check format lint types protocol docs pictures fuzz streams simulate simulate-mutants simulate-servers chaos siege lifelines storm rolling soak bench lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Everything is pinned by hash, and `--no-deps` keeps pip from resolving: by itself it looks for a newer release of
# what another package wants with an extra, and then refuses that release for want of a pin.
# What runs needs a quarter of what develops.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

$(RUNTIME): requirements-runtime.lock requirements-build.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps --require-hashes -r requirements-runtime.lock -r requirements-build.lock
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(INSTALLED): $(RUNTIME) requirements.lock
	$(PIP) --no-deps --require-hashes -r requirements.lock
	@touch $@

serve: $(RUNTIME) ## Front end, worker and embedded broker in one process, with the demo agent
	@$(BIN)/turnstream serve

secrets: ## The passwords and the admin key that docker-compose.yml mounts; made once
	@sh deploy/secrets.sh

cluster: $(RUNTIME) ## The whole deployment as local processes: nginx, 2 front ends, 2 workers, a broker (PORT=8080); sessions on a Redis Cluster (BROKERS=3)
	@$(BIN)/python -m deploy --port $(PORT) --brokers $(BROKERS)

test: $(INSTALLED) ## The whole test suite; starts the real broker it needs by itself
	@# Some by themselves, since they want the machine; the rest side by side, since most tests wait more than they work.
	$(BIN)/python -m pytest tests/chaos tests/simulation tests/security/test_siege.py
	$(BIN)/python -m pytest -n 4 --dist worksteal --ignore tests/chaos --ignore tests/simulation --ignore tests/security/test_siege.py

test-cluster: $(INSTALLED) ## The behaviour suite with the sessions on a real cluster, and the cluster's own tests
	BACKENDS=cluster $(BIN)/python -m pytest -n 4 tests/behaviour
	$(BIN)/python -m pytest tests/processes/test_sessions_on_a_cluster.py tests/unit/shared/broker/test_cluster.py tests/unit/shared/broker/test_shards.py

check: $(INSTALLED) format lint types test ## What must hold before a commit: format, lint, types, tests

format: $(INSTALLED) ## Is everything formatted?
	$(BIN)/ruff format --check .

lint: $(INSTALLED) ## Lint, and look for code that nothing uses
	$(BIN)/ruff check .
	@# Tests and examples are looked through for uses; what they define is for their runners.
	! $(BIN)/vulture | grep -vE '^(tests|examples)/'

types: $(INSTALLED) ## Strict types over source and tests
	$(BIN)/mypy

protocol: $(INSTALLED) ## Capture docs/protocol.md anew
	@$(BIN)/python -m docs.capture

docs: $(INSTALLED) ## The documentation as a website, in build/docs; TURNSTREAM_DOCS_URL is where it will be
	@$(BIN)/python -m docs.website

pictures: $(INSTALLED) ## Make the documentation's pictures anew: photograph the console (needs Chromium), colour the dark drawings
	@$(BIN)/python -m docs.pictures

fuzz: $(INSTALLED) ## Generated requests against both brokers for MINUTES (10)
	FUZZ_MINUTES=$(MINUTES) $(BIN)/python -m pytest -s tests/conformance/test_schemathesis.py

streams: $(INSTALLED) ## Generated provider streams to the library's client and to ours for MINUTES (10)
	STREAM_MINUTES=$(MINUTES) $(BIN)/python -m pytest -s tests/unit/worker/agents/test_openai_stream.py

chaos: SEEDS ?= 1 2 3 4 5
chaos: BROKER ?= server
chaos: $(INSTALLED) ## Kill, freeze and cut a deployment for MINUTES (10) with each of SEEDS (1 2 3 4 5); BROKER=server, sentinel or cluster
	$(BIN)/python -m tests.chaos --seeds $(SEEDS) --minutes $(MINUTES) --broker $(BROKER)

simulate: SEEDS ?= 1-40
simulate: TURNS ?= 500
simulate: $(INSTALLED) ## Simulate a cluster with each of SEEDS (1-40), TURNS (500) turns each
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --turns $(TURNS)

simulate-mutants: $(INSTALLED) ## Take one fence after the other away: the simulation must find each
	$(BIN)/python -m tests.simulation.mutants

simulate-servers: $(INSTALLED) ## Compare simulated brokers with real ones, by what simulations ask of them
	$(BIN)/python -m tests.simulation.compare --seeds 1-12

siege: $(INSTALLED) ## Attack a deployment with one key for MINUTES (10); a neighbour's turns must complete, and soon
	$(BIN)/python -m tests.security.siege --minutes $(MINUTES)

lifelines: $(INSTALLED) ## Kill 40 workers, and disturb living ones for an hour: how soon are they missed, and is any wrongly?
	$(BIN)/python -m tests.chaos.lifelines --kills 40 --minutes 60

storm: $(INSTALLED) ## Cut 5,000 followers of 500 speaking sessions all at once, in five ways: how soon do they hear again?
	STORM_FOLLOWERS=5000 STORM_SESSIONS=500 STORM_PACE_MS=3000 $(BIN)/pytest -q -s tests/processes/test_storms.py

rolling: $(INSTALLED) ## Replace every process of a deployment under load, 20 times
	$(BIN)/python -m tests.chaos --rolls 20 --seeds 1 --minutes 120

soak: TURNS ?= 50000
soak: $(INSTALLED) ## Do TURNS (50000) turns; nothing may grow
	$(BIN)/python -m tests.chaos.soak --turns $(TURNS)

bench: $(INSTALLED) ## Measure ROWS (all), beside others; prints one table
	@$(BIN)/python -m bench $(ROWS)

COMPILE := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-header --no-annotate

lock: ## Resolve the dependencies anew (needs uv)
	$(COMPILE) --extra server --group dev --upgrade -o requirements.lock
	@# The same versions: what the image gets, without what only developers need; and what builds the package.
	$(COMPILE) --extra server --constraint requirements.lock -o requirements-runtime.lock
	uv pip compile --group build --universal --python-version 3.11 --generate-hashes --constraint requirements.lock \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate -o requirements-build.lock

clean: ## Remove the environment, the website and all caches
	rm -rf $(VENV) build/docs .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info clients/js/node_modules clients/js/dist
