# Everything runs from .venv, which the first target that needs it creates: a plain venv and pip.
PYTHON ?= python3
BIN := .venv/bin
# Nothing is compiled at installation: Python compiles what is imported, when it is.
INSTALL := python -m pip install --quiet --disable-pip-version-check --no-compile
# Stamps of what is installed: a change of the project file installs again.
CORE := .venv/.installed
TEST := .venv/.installed-test
LINT := .venv/.installed-lint
COVERAGE := .venv/.installed-coverage
GATEWAY := .venv/.installed-gateway
TORCH := .venvs/torch/.installed
LOWEST := .venvs/torch-lowest/.installed
GPU := .venvs/gpu/.installed
DOCS := .venvs/docs/.installed
RELEASE := .venvs/release/.installed

# Tests start Python some hundred times: it compiles once, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo page test test-all test-versions test-peers test-browser test-agents test-torch test-torch-lowest test-gpu coverage lint format bench bench-release bench-peers results hooks docs docs-version has-version release drawings errors-page installs clean
.DELETE_ON_ERROR:

demo: $(CORE)
	$(BIN)/envsdk demo --out runs/demo

# Three workers for two cores: many tests wait for servers, processes and deadlines.
test: $(TEST)
	$(BIN)/python -m pytest -n 3 --dist worksteal --benchmark-disable

# The same with every row of the large matrices and more examples of each property (see tests/matrices.py): some
# minutes. CI does not run it.
test-all: $(TEST)
	$(BIN)/python -m pytest -n 3 --dist worksteal --benchmark-disable --full

# With each supported Python that this machine has, each in .venvs/python3.X: all, or VERSIONS="3.12 3.13".
test-versions: | .venv/pyvenv.cfg
	$(BIN)/python tests/versions.py $(VERSIONS)

# Against other projects, each in .venvs/<peer>: all of them, or PEERS="renderers ...". With all rows of
# matrices: PEERS="--full renderers ...".
test-peers: | .venv/pyvenv.cfg
	$(BIN)/python tests/peers/run.py $(PEERS)

# The page of `envsdk view` in a headless Chromium, in .venvs/browser; it is one of the peers.
test-browser: | .venv/pyvenv.cfg
	$(BIN)/python tests/peers/run.py browser

# Real agent programs, each installed in a pinned version in .venvs, driven through the same scenarios; writes docs/agents.md.
# Programs of npm need Node. Some: make test-agents AGENTS="opencode aider"
test-agents: $(TEST)
	$(BIN)/python tests/atlas/run.py $(AGENTS)

# With real models on the CPU: a file's tests share models. One thread for each of two workers: more would wait.
# All rows of matrices and all fits: make test-torch TORCH_OPTIONS=--full
test-torch: $(TORCH)
	OMP_NUM_THREADS=1 .venvs/torch/bin/python -m pytest -n 2 --dist loadfile tests/with_torch $(TORCH_OPTIONS)

# The same with the lowest versions of the extra `torch`. Such an old torch comes with CUDA: 3 GB.
test-torch-lowest: $(LOWEST)
	CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 .venvs/torch-lowest/bin/python -m pytest -n 2 --dist loadfile tests/with_torch

# Trees on an NVIDIA GPU against separate samples, and TRL's trainer on them; writes the table of
# docs/explanation/trees.md. Other options: make test-gpu GPU_OPTIONS="--steps 16 --no-trainer"
test-gpu:
	@if nvidia-smi -L 2>/dev/null; then $(MAKE) $(GPU) && .venvs/gpu/bin/python tests/gpu/run.py $(GPU_OPTIONS); \
	else echo "test-gpu: this machine has no NVIDIA GPU. Nothing was run, so nothing has passed."; fi

# Line and branch coverage of the tests of `make test`, child processes included; pages in .cache/coverage/html.
coverage: $(COVERAGE)
	rm -rf .cache/coverage
	mkdir -p .cache/coverage
	$(BIN)/coverage run -m pytest -n 2 --dist worksteal --benchmark-disable
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report

# Builds envsdk/viewer/page.html from viewer/, with Node 20 or newer and the pinned packages. Its types are Python's.
page: $(CORE)
	$(BIN)/python scripts/viewer_types.py
	cd viewer && npm ci --ignore-scripts && npm run check && npm test && npm run build

lint: $(LINT)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(LINT)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Runs the checks of .pre-commit-config.yaml before each commit.
hooks: $(LINT)
	$(BIN)/$(INSTALL) -c tests/constraints.txt -e '.[hooks]'
	$(BIN)/pre-commit install

# Side by side with other projects, each in an environment of its own; writes docs/benchmarks.md. Some rows, or quickly,
# into .cache/benchmarks: make bench-peers BENCH="tool-turns --quick". One row of the page again: BENCH="gateway --out docs".
bench-peers: $(TEST)
	$(BIN)/$(INSTALL) -c tests/constraints.txt -e '.[test,report]'
	$(BIN)/python -m benchmarks $(BENCH)

# What everything costs, compared with the last release: a row that got slower fails. Some rows: BENCH="-k samples"
bench: $(TEST)
	PYTHONPATH=scripts $(BIN)/python -m regressions $(BENCH)

# Stores the figures that `make bench` compares with. Run it for a release, on a machine that does nothing else.
bench-release: $(TEST)
	PYTHONPATH=scripts $(BIN)/python -m regressions --release $(BENCH)

# Trains a real model on the CPU in the ways that docs/results.md compares, for hours, and writes the page and its figures. Runs
# that have a log in scripts/results/logs are not repeated. Some games: GAMES="guess"
results: $(CORE)
	PYTHONPATH=scripts $(BIN)/python -m results $(GAMES)
	PYTHONPATH=scripts $(BIN)/python -m documentation.drawings

# The documentation site, in .cache/docs/site. A broken link or anchor, or any other warning, is an error.
docs: $(DOCS) $(GATEWAY)
	PYTHONPATH=scripts $(BIN)/python -m documentation $(DOCS_OPTIONS)
	.venvs/docs/bin/zensical build --config-file .cache/docs/zensical.toml --strict
	PYTHONPATH=scripts $(BIN)/python -m documentation.built

# Puts the site into a folder of versions, for a web server: make docs-version VERSION=0.3 SITE=../site
docs-version: DOCS_OPTIONS := --versions
docs-version: has-version docs
	PYTHONPATH=scripts $(BIN)/python -m documentation.versions $(VERSION) $(SITE)

has-version:
	@test -n "$(VERSION)" -a -n "$(SITE)" || { echo "docs-version needs both: make docs-version VERSION=0.3 SITE=FOLDER"; exit 1; }

# Builds the wheel and the sdist that it is made from in dist/, checks both, and writes dist/notes.md from CHANGELOG.md. The
# wheel runs in a new environment of each supported Python that this machine has, without the clone and without a network.
release: $(CORE) $(RELEASE)
	rm -rf dist
	.venvs/release/bin/python -m build --outdir dist .
	.venvs/release/bin/twine check --strict dist/*
	$(BIN)/python tests/release.py

# Writes docs/drawings/ from real episodes, and from tables of the documents.
drawings: $(CORE)
	PYTHONPATH=scripts $(BIN)/python -m documentation.drawings

# Resolves envsdk with each trainer and server, and writes the tables of docs/trainers/index.md. It needs the network.
installs: $(TEST)
	$(BIN)/$(INSTALL) uv
	$(BIN)/python scripts/shared_installs.py

# Writes docs/errors.md from the entries of `envsdk explain`.
errors-page: $(CORE)
	PYTHONPATH=scripts $(BIN)/python -m documentation.errors

clean:
	rm -rf .venv .venvs .cache .pytest_cache .ruff_cache .hypothesis dist runs

.venv/pyvenv.cfg:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "envsdk needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

$(CORE): pyproject.toml | .venv/pyvenv.cfg
	$(BIN)/$(INSTALL) -e .
	touch $@

$(TEST): tests/constraints.txt tests/requirements-data.txt $(CORE)
	$(BIN)/$(INSTALL) -c tests/constraints.txt -e '.[test]'
	$(BIN)/$(INSTALL) --no-deps -r tests/requirements-data.txt
	touch $@

# The reference describes what the gateway reads and stores, and the built-in environments, some of which have images.
$(GATEWAY): $(CORE)
	$(BIN)/$(INSTALL) -c tests/constraints.txt -e '.[gateway,vision,report]'
	touch $@

$(LINT): $(TEST)
	$(BIN)/$(INSTALL) -c tests/constraints.txt -e '.[test,lint]'
	touch $@

$(COVERAGE): $(TEST)
	$(BIN)/$(INSTALL) -c tests/constraints.txt -e '.[test,coverage]'
	touch $@

.venvs/torch/pyvenv.cfg: | .venv/pyvenv.cfg
	$(PYTHON) -m venv .venvs/torch

$(TORCH): pyproject.toml tests/constraints.txt tests/requirements-data.txt | .venvs/torch/pyvenv.cfg
	.venvs/torch/bin/$(INSTALL) -c tests/constraints.txt -e '.[test,torch,examples]'
	.venvs/torch/bin/$(INSTALL) --no-deps -r tests/requirements-data.txt
	touch $@

.venvs/torch-lowest/pyvenv.cfg: | .venv/pyvenv.cfg
	$(PYTHON) -m venv .venvs/torch-lowest

$(LOWEST): pyproject.toml tests/constraints-lowest.txt tests/requirements-data.txt | .venvs/torch-lowest/pyvenv.cfg
	.venvs/torch-lowest/bin/$(INSTALL) -c tests/constraints-lowest.txt -e '.[test,torch,examples]'
	.venvs/torch-lowest/bin/$(INSTALL) --no-deps -r tests/requirements-data.txt
	touch $@

.venvs/gpu/pyvenv.cfg: | .venv/pyvenv.cfg
	$(PYTHON) -m venv .venvs/gpu

$(GPU): pyproject.toml tests/peers/trl/requirements.txt | .venvs/gpu/pyvenv.cfg
	.venvs/gpu/bin/$(INSTALL) -e '.[test,torch]' trl peft -c tests/peers/trl/requirements.txt
	touch $@

.venvs/docs/pyvenv.cfg: | .venv/pyvenv.cfg
	$(PYTHON) -m venv .venvs/docs

$(DOCS): scripts/documentation/requirements.txt | .venvs/docs/pyvenv.cfg
	.venvs/docs/bin/$(INSTALL) -r scripts/documentation/requirements.txt
	touch $@

.venvs/release/pyvenv.cfg: | .venv/pyvenv.cfg
	$(PYTHON) -m venv .venvs/release

$(RELEASE): tests/requirements-release.txt | .venvs/release/pyvenv.cfg
	.venvs/release/bin/$(INSTALL) -r tests/requirements-release.txt
	touch $@
