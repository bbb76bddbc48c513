# make demo, make test: everything from nothing. PYTHON picks the interpreter (3.11, 3.12 or 3.13).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUN ?= demo-run
# those that a release is checked with, and those of them that torch has a CPU build for
PYTHONS ?= 3.11 3.12 3.13
TORCH_PYTHONS ?= 3.11
COMMA := ,
# torch has a CPU build for every Python on most systems; WITHOUT_TORCH=1 installs everything but training
EXTRAS := $(if $(WITHOUT_TORCH),documents$(COMMA)http$(COMMA)flows,stanza,train,lora,flows,ldp-service,http,dask,plots,documents)
# installed alone and first, by its hash; then asked for again, so that nothing puts another in its place
TORCH := $(if $(WITHOUT_TORCH),,$(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' constraints/registry.txt))
BY_HASH = $(PIP) install --quiet --require-hashes --no-deps -r
export TOKENIZERS_PARALLELISM = false

.PHONY: size demo test test-all programs soak mutants check install bench docs clean dist release-check sbom licences

demo: $(VENV)/.installed
	rm -rf $(RUN) $(RUN)-input
	$(BIN)/redactory demo --out $(RUN)

WITHOUT := tests/training tests/evaluation tests/integrations tests/docs

# three processes: some tests wait for servers and workers. Stopping it (Ctrl-C, SIGTERM) leaves no server and no file behind
PYTEST = $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --in-memory \
	$(if $(WITHOUT_TORCH),$(addprefix --ignore=,$(WITHOUT)))

# every behaviour once
test: check docs
	@exec $(PYTEST) -m "not slow"

# the slow tests too: long sweeps, kills, servers, every page of the docs
test-all: check docs programs
	@exec $(PYTEST)

# tests read shards with Spark, which runs on Java 17 or newer, and use the review page in Chromium
programs:
	@for program in java:default-jre-headless chromium:chromium; do \
		command -v "$${program%%:*}" >/dev/null 2>&1 && continue; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$${program##*:}"; } >/dev/null || exit 1; \
		else \
			echo "$${program%%:*} is not installed: apt-get install $${program##*:} (or make programs, as root)" >&2; exit 1; \
		fi; \
	done

# minutes to an hour: a minute or two of each fuzzer, then kills, faults and hostile input in numbers; the
# last lines count the kills, and what was stuck, lost or leaked
soak: $(VENV)/.dev
	$(PIP) install --quiet $(TORCH) --editable '.[$(EXTRAS),dev,soak]'
	$(BIN)/python -m tests.soak.fuzz readers
	$(BIN)/python -m tests.soak.fuzz masker
	$(BIN)/python -m tests.soak.fuzz policies
	$(BIN)/python -m pytest -n 0 -s tests/soak/soak_*.py

# ten to twenty minutes: one silent breakage after the other, in a copy; each has to be seen by its tests
mutants: $(VENV)/.dev
	$(BIN)/python -m tests.mutants

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(if $(WITHOUT_TORCH),,$(BIN)/mypy)

# lines, modules, commands, keys, pages and words, as JSON
size: $(VENV)/.installed
	@$(BIN)/python -m releasing.size

install: $(VENV)/.installed

bench: $(VENV)/.installed
	$(PIP) install --quiet $(TORCH) --editable '.[$(EXTRAS),bench]'
	$(BIN)/python benchmarks/curate.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/detection.py
	$(BIN)/python benchmarks/dedup.py
	$(BIN)/python benchmarks/dedup_cost.py

# a link or an anchor that leads nowhere ends it
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# the sdist and the wheel, the same bytes each time
dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m releasing.dist dist

# ten minutes to an hour: the wheel of dist/ in empty environments, with the demo
release-check: $(VENV)/.dev
	$(BIN)/python -m releasing.check $(PYTHONS) --torch '$(TORCH_PYTHONS)' --dist dist

# what is installed, as CycloneDX; the tool has an environment of its own
sbom: $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)/sbom
	$(VENV)/sbom/bin/python -m pip install --quiet --disable-pip-version-check 'cyclonedx-bom>=7,<8'
	$(BIN)/python -m releasing.sbom $(VENV)/sbom/bin dist

licences: $(VENV)/.dev
	$(PIP) install --quiet $(TORCH) --editable '.[all,dev,docs,bench,soak]'
	$(BIN)/python -m releasing.licences

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints/cpu.txt constraints/registry.txt
	$(if $(WITHOUT_TORCH),,$(BY_HASH) constraints/cpu.txt || { echo "no CPU build of PyTorch here: taking the registry's"; $(BY_HASH) constraints/registry.txt; })
	$(PIP) install --quiet $(TORCH) --editable '.[$(EXTRAS)]'
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) install --quiet $(TORCH) --editable '.[$(EXTRAS),dev,docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
