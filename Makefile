# What a clone can do, from a machine with Python, pip, make and git. `make help` lists it.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
READY := .venv/ready
names = $(sort $(basename $(notdir $(wildcard $(1)/*.txt))))
BENCH_PEERS = $(or $(PEERS),$(call names,benchmarks/peers))
LOADER_PEERS = $(or $(PEERS),litdata megatron orders_grain streaming tokenizers_datasets tokflow \
	torch_data torchtitan)
INTEROP_PEERS = $(or $(PEERS),$(call names,tokflow_tests/interop/peers))

# What `make test` runs.
FAST := not slow and not deploy and not interop and not crash and not integrity and not ui

# Where it is set, every process compiles all of tokflow anew.
unexport PYTHONDONTWRITEBYTECODE

# Modules are compiled when they are first imported. Most never are, and to compile all that pip
# installs takes several times as long as to install it.
export PIP_COMPILE := 0

.DEFAULT_GOAL := help
.PHONY: help demo test test-clouds test-deploy test-dg test-ray test-slow test-crash test-integrity test-interop test-ui \
	environments test-newest test-lowest test-next test-faults test-mutants golden fuzz bench bench-jobs bench-fixed bench-formats bench-disk bench-packing bench-orders bench-loaders bench-scale \
	bench-near-duplicates bench-select bench-exact bench-peers docs examples \
	example-train lock clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile
	@echo "  PYTHON=python3.12 picks another Python, ARGS='...' adds arguments to pytest and benchmarks"

demo: $(READY) ## Build a real dataset from the Python sources of this machine (60 MB)
	@$(BIN)/python -m examples.demo data/raw/demo
	@$(BIN)/tokflow run demo
	@$(BIN)/tokflow report demo

docs: $(READY) .venv-docs/ready ## The documentation as a site, in build/docs; links and anchors are checked
	@$(BIN)/python docs/site/reference.py .venv-docs/reference
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict >.venv-docs/log 2>&1 \
		|| { cat .venv-docs/log; exit 1; } # --quiet would take no warning for an error
	@echo "build/docs/index.html"

examples: $(READY) ## Six workflows on small data, read by their own readers (NAMES='sst2 lance' picks some)
	@$(BIN)/python -m examples $(NAMES) $(ARGS)

example-train: .venv-interop/loaders/ready ## A small training with torch: a bin, a parquet, a mixture
	@.venv-interop/loaders/bin/python -m examples train $(ARGS)

test: $(READY) ## Lint, types and tests (all but the slow ones)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports >.venv/imports.txt || { cat .venv/imports.txt; exit 1; }
	@$(BIN)/pytest --quiet -m "$(FAST)" -n 3 --dist loadfile $(ARGS) # many wait for processes

test-deploy: $(READY) .venv-deploy/ready ## The services of deploy/ with a PostgreSQL: builds, restarts, backups, containers, login
	@PYTHONPATH=.venv-deploy/lib $(BIN)/python -c "import dagster_k8s, kubernetes.client" # else skipped
	@PYTHONPATH=.venv-deploy/lib $(BIN)/pytest --quiet tokflow_tests/deploy $(ARGS)

test-dg: $(READY) .venv-dg/ready ## The wheel in a project that create-dagster makes, by dg's commands
	@$(BIN)/pytest --quiet -m slow tokflow_tests/dg $(ARGS)

test-slow: $(READY) .venv-dg/ready ## The proofs that take long
	@$(BIN)/pytest --quiet -m slow $(ARGS)

test-ray: .venv-ray/ready ## Builds on a cluster of Ray that this machine plays, a node of which is killed
	@.venv-ray/bin/pytest --quiet tokflow_tests/on_ray $(ARGS)

test-clouds: .venv-clouds/ready ## Stores at Google Cloud Storage and Azure, each played by a server on this machine
	@PATH="$(CURDIR)/.venv-clouds/node_modules/.bin:$$PATH" .venv-clouds/bin/pytest --quiet -rs \
		tokflow_tests/clouds $(ARGS)

test-ui: .venv-ui/ready ## Dagster's pages, the report and the viewer in a browser, which asks this machine alone
	@tokflow_tests/ui/install_browser
	@.venv-ui/bin/pytest --quiet -m ui tokflow_tests/ui $(ARGS)

test-crash: $(READY) ## Commands killed at random and run again (KILLS=200 SEED=1)
	@KILLS=$(or $(KILLS),200) SEED=$(or $(SEED),1) $(BIN)/pytest --quiet -m crash -n 2 $(ARGS)

test-integrity: $(READY) ## A fault in every kind of file of a store: found, and nothing made from it
	@$(BIN)/pytest --quiet -m integrity -n 2 --dist loadfile $(ARGS)

test-interop: $(READY) ## Exports read by their peers (PEERS='megatron datatrove' picks some)
	@$(call make_environments,.venv-interop,$(INTEROP_PEERS)); \
	TOKFLOW_PEERS="$(INTEROP_PEERS)" $(BIN)/pytest --quiet -m interop -n 2 --dist loadfile $(ARGS)

environments: .venv-dg/ready .venv-docs/ready .venv-ray/ready .venv-ui/ready .venv-deploy/ready ## Environments of the tests of dg, Ray, pages, deploy/ and peers, and of the docs
	@$(call make_environments,.venv-interop,$(INTEROP_PEERS))

test-newest: .venv-newest/ready ## The tests on the newest Python and libraries (NEWEST=python3.13 picks a Python)
	@.venv-newest/bin/pytest --quiet -m "$(FAST)" -n 2 --dist loadfile $(ARGS)

test-lowest: .venv-lowest/ready ## The tests with the oldest libraries that pyproject.toml allows
	@.venv-lowest/bin/pytest --quiet -m "$(FAST)" -n 2 --dist loadfile -W default $(ARGS) # old ones warn

test-next: .venv-next/ready ## tokflow with tokenizers 1.0, which transformers forbids, so without transformers
	@.venv-next/bin/pytest --quiet -m "$(FAST)" tokflow_tests/tokenizers/engines/test_tokenizers_.py \
		tokflow_tests/tokens/test_shard.py tokflow_tests/split $(ARGS)

test-faults: $(READY) ## Each kind of fault of a store at a URL and of pushes, and how many they held (ARGS="--table killed -v")
	@$(BIN)/python -m tokflow_tests.faults $(ARGS)

test-mutants: $(READY) ## Faults put into a copy of the product: each must be found by the tests (ARGS="split loaders")
	@$(BIN)/python -m tokflow_tests.mutants --marks "$(FAST)" $(ARGS)

golden: $(READY) ## Every file of five fixed datasets, here and at s3://, against its digest (ARGS=--write)
	@$(BIN)/python -m tokflow_tests.golden $(ARGS)

fuzz: $(READY) ## Random datasets against a slow model (SECONDS=900 SEED=1; CASES=1 runs one alone)
	@$(BIN)/python -m tokflow_tests.fuzz --seconds $(or $(SECONDS),60) $(addprefix --seed=,$(SEED)) \
		$(addprefix --cases=,$(CASES)) $(ARGS)

bench: $(READY) ## Time and memory on 60 and 300 MB, against the raw engine and the peers
	@$(BIN)/python -m benchmarks $(ARGS)

bench-jobs: $(READY) ## How time scales with --jobs, against runs that share nothing: 500 MB in 8 files and in 1
	@$(BIN)/python -m benchmarks jobs $(ARGS)

bench-fixed: $(READY) ## What a tiny dataset and a run with nothing to do cost
	@$(BIN)/python -m benchmarks fixed $(ARGS)

bench-formats: $(READY) ## What each export format costs, once the tokens are there
	@$(BIN)/python -m benchmarks formats $(ARGS)

bench-disk: $(READY) ## What a dataset takes on the disk, what a change writes, what gc frees (ARGS='--files 100 --sizes 1000')
	@$(BIN)/python -m benchmarks disk $(ARGS)

bench-packing: $(READY) ## How full rows are by each strategy, and what packing 10 million documents costs
	@$(BIN)/python -m benchmarks packing $(ARGS)

bench-orders: $(READY) ## How random the orders of loaders are, against numpy, Grain and Levanter
	@$(call make_environments,.venv-peers,orders_grain orders_levanter); \
	$(BIN)/python -m benchmarks orders $(ARGS)

bench-loaders: $(READY) ## What loaders give a second, and lose or refuse on resume, on the same tokens
	@$(call make_environments,.venv-peers,$(LOADER_PEERS)); \
	$(BIN)/python -m benchmarks loaders $(ARGS)

bench-scale: $(READY) ## What 27,000 files of 44 TB cost on an object store, computed: requests, hours, dollars
	@$(BIN)/python -m benchmarks scale $(ARGS)

bench-near-duplicates: $(READY) ## What near-duplicates cost, and which planted copies are found (ARGS="1000000 16 8")
	@$(BIN)/python -m benchmarks.near_duplicates $(ARGS)

bench-select: $(READY) ## What a changed threshold, a mask and scores in another order cost (ARGS="400 10000000")
	@$(BIN)/python -m benchmarks.select $(ARGS)

bench-exact: $(READY) .venv-next/ready ## Which libraries give the token ids of which tokenizer (ARGS="--only GPT-2"), on all code points
	@$(call make_environments,.venv-interop,vocabularies)
	@$(call make_environments,.venv-peers,exact)
	@$(BIN)/python -m benchmarks exact $(ARGS)

bench-peers: ## Install what `make bench` compares with (PEERS='dolma litdata' picks some)
	@$(call check_python)
	@$(call make_environments,.venv-peers,$(BENCH_PEERS)); \
	test -z "$$failed" || { echo "make bench leaves them out"; exit 1; }

clean: ## Remove environments, caches and the demo; other datasets stay
	@rm -rf .venv .venv-* *.egg-info build dist .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
	@rm -rf data/raw/demo data/store/demo .tmp_dagster_home_*
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

lock: ## Write constraints.txt anew: the newest versions that pyproject.toml allows
	@$(call check_python)
	@rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install -qq --upgrade "pip>=25.1"
	@.venv-lock/bin/python -m pip install -qq --editable . --group dev
	@{ sed '/^[^#]/,$$d' constraints.txt; .venv-lock/bin/pip freeze --exclude-editable; } >.venv-lock/constraints.txt
	@mv .venv-lock/constraints.txt constraints.txt && rm -rf .venv-lock

# Made once, and again when the dependencies change.
$(READY): pyproject.toml constraints.txt
	@$(call check_python)
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@echo "Installing tokflow and its tools into .venv: once, a few minutes at most"
	@$(BIN)/python -m pip install -qq --upgrade "pip>=25.1" # the first with --group
	@# compat: a script beside a clone called tokflow would import that folder in place of the package
	@$(BIN)/python -m pip install -qq --constraint constraints.txt --group dev \
		--config-settings editable_mode=compat --editable .
	@touch $@

# tokflow, which the tests install there anew as a wheel, with dg: apart, for dg's own needs.
.venv-dg/ready: tokflow_tests/dg/requirements.txt pyproject.toml constraints.txt
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	@echo "Installing dg and what tokflow needs into $(@D): once"
	@$(@D)/bin/python -m pip install -qq --constraint constraints.txt --requirement $< ".[report,s3,ui]"
	@touch $@

# mkdocs and its theme: apart, for tokflow needs none of it.
.venv-docs/ready: docs/site/requirements.txt
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	@echo "Installing mkdocs into $(@D): once"
	@$(@D)/bin/python -m pip install -qq --requirement $<
	@touch $@

# dagster-k8s, for the values of Dagster's chart, and Debian's Caddy: the test of the login is skipped
# where that cannot be had.
.venv-deploy/ready: tokflow_tests/deploy/requirements.txt constraints.txt | $(READY)
	@mkdir -p $(@D)
	@$(BIN)/python -m pip install -qq --no-deps --upgrade --target $(@D)/lib --constraint constraints.txt \
		--requirement $<
	@command -v caddy >/dev/null || { cd $(@D) && apt-get -qq download caddy && \
		dpkg -x caddy_*.deb . && rm caddy_*.deb; } || echo "No Caddy: its test is left out"
	@touch $@

# Without constraints.txt: whatever is newest of all that pyproject.toml allows.
NEWEST ?= $(shell for of in 14 13 12 11; do python3.$$of -c "" 2>/dev/null && echo python3.$$of && break; done)
.venv-newest/ready: pyproject.toml
	@test -x $(@D)/bin/pip || $(NEWEST) -m venv $(@D)
	@echo "Installing tokflow and its tools into $(@D), for $$($(@D)/bin/python --version): once"
	@$(@D)/bin/python -m pip install -qq --upgrade "pip>=25.1"
	@$(@D)/bin/python -m pip install -qq --editable . --group dev
	@touch $@

# The lower bound of each dependency, and of each extra but ray, gcs and azure, whose tests are apart.
.venv-lowest/ready: pyproject.toml
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	@echo "Installing the oldest libraries that tokflow allows into $(@D): once"
	@$(@D)/bin/python -m pip install -qq --upgrade "pip>=25.1" "uv>=0.9"
	@$(@D)/bin/uv pip compile --quiet --python $(@D)/bin/python --resolution lowest-direct --no-header \
		--extra docker --extra lance --extra levanter --extra postgres --extra report --extra s3 --extra ui \
		--output-file $(@D)/lowest.txt pyproject.toml
	@$(@D)/bin/python -m pip install -qq --constraint $(@D)/lowest.txt --editable . --group dev
	@touch $@

# What constraints.txt names, with tokenizers 1.0 and without transformers; pip is to resolve nothing.
.venv-next/ready: pyproject.toml constraints.txt
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	@echo "Installing tokenizers 1.0 and tokflow into $(@D): once"
	@$(@D)/bin/python -m pip install -qq --upgrade "pip>=25.1"
	@sed '/^#/d; /^tokenizers=/d; /^transformers=/d' constraints.txt >$(@D)/next.txt
	@$(@D)/bin/python -m pip install -qq --no-deps --requirement $(@D)/next.txt tokenizers==1.0.0rc3
	@$(@D)/bin/python -m pip install -qq --no-deps --config-settings editable_mode=compat --editable .
	@touch $@

# tokflow with Ray: apart, for its size.
.venv-ray/ready: tokflow_tests/on_ray/requirements.txt pyproject.toml constraints.txt
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	@echo "Installing Ray and tokflow into $(@D): once"
	@$(@D)/bin/python -m pip install -qq --upgrade "pip>=25.1"
	@$(@D)/bin/python -m pip install -qq --constraint constraints.txt --requirement $< --editable '.[ray,s3]'
	@touch $@

# tokflow with gcsfs and adlfs, and their servers: azurite where there is npm.
.venv-clouds/ready: tokflow_tests/clouds/requirements.txt pyproject.toml constraints.txt
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	@echo "Installing gcsfs, adlfs, their servers and tokflow into $(@D): once"
	@$(@D)/bin/python -m pip install -qq --upgrade "pip>=25.1"
	@$(@D)/bin/python -m pip install -qq --constraint constraints.txt --requirement $< \
		--editable '.[azure,gcs,s3]'
	@command -v npm >/dev/null && npm install --silent --prefix $(@D) azurite@3.35.0 >/dev/null || \
		echo "No azurite: the tests of Azure are left out"
	@touch $@

# tokflow with what drives a browser: apart, so that `make test` needs none.
.venv-ui/ready: tokflow_tests/ui/requirements.txt pyproject.toml constraints.txt
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D)
	@echo "Installing playwright and tokflow into $(@D): once"
	@$(@D)/bin/python -m pip install -qq --constraint constraints.txt --requirement $< --editable '.[ui,report]'
	@touch $@

# An environment per peer, since their pins clash.
.venv-peers/%/ready: benchmarks/peers/%.txt
	@$(call make_environment,$*)

.venv-interop/%/ready: tokflow_tests/interop/peers/%.txt
	@$(call make_environment,$*)

.venv-interop/loaders/ready: pyproject.toml # it has tokflow too

define make_environment
test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D) || exit 1; \
echo "Installing $(1) into $(@D): once"; \
$(@D)/bin/python -m pip install -qq --requirement $< && \
sed -n 's/^# --no-deps //p' $< | xargs -r $(@D)/bin/python -m pip install -qq --no-deps && \
sed -n 's/^# \(--ignore-requires-python\)/\1 --no-deps/p' $< | xargs -r $(@D)/bin/python -m pip install -qq && \
sed -n 's/^# npm //p' $< | xargs -r npm install --silent --prefix $(@D) >/dev/null && \
sed -n 's/^# sources //p' $< | xargs -r $(@D)/bin/python -m pip download -qq --no-deps --no-binary :all: \
	--dest $(@D)/sources && touch $@
endef

# The others are made although one fails, and $$failed names it.
define make_environments
failed=; for peer in $(2); do \
	$(MAKE) --silent $(1)/$$peer/ready || failed="$$failed $$peer"; \
done; \
test -z "$$failed" || echo "Not installed:$$failed"
endef

define check_python
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "tokflow needs Python 3.11 or newer; $(PYTHON) is" \
		"$$($(PYTHON) --version 2>/dev/null || echo 'not there')."; \
	echo "Install one and name it, for example: make $(MAKECMDGOALS) PYTHON=python3.12"; \
	exit 1; \
}
endef
