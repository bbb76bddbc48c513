# make demo, make test: everything from nothing. PYTHON picks the interpreter (3.11, 3.12 or 3.13).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUN ?= demo-run
# torch has a CPU build for every Python on most systems; WITHOUT_TORCH=1 installs everything but training
EXTRAS := $(if $(WITHOUT_TORCH),flows,stanza,train,lora,flows,dask)
CONSTRAINTS := $(if $(WITHOUT_TORCH),,-c constraints/cpu.txt)
export TOKENIZERS_PARALLELISM = false

.PHONY: demo test postgresql soak check install bench docs clean

demo: $(VENV)/.installed
	rm -rf $(RUN) $(RUN)-input
	$(BIN)/redactory demo --out $(RUN)

test: check postgresql
	$(BIN)/python -m pytest -n 2 --dist loadfile $(if $(WITHOUT_TORCH),--ignore tests/training --ignore tests/evaluation --ignore tests/docs)

# a test runs Prefect on a PostgreSQL server of its own; its programs are Debian's
postgresql:
	@if ! { command -v initdb || ls /usr/lib/postgresql/*/bin/initdb; } >/dev/null 2>&1; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends postgresql; } >/dev/null; \
		else \
			echo "PostgreSQL's server is not installed: apt-get install postgresql (or make postgresql, as root)" >&2; exit 1; \
		fi; \
	fi

# minutes to an hour: kills, faults and hostile input in numbers; then a minute or two of each fuzzer
soak: $(VENV)/.dev
	$(PIP) install --quiet $(CONSTRAINTS) --editable '.[$(EXTRAS),dev,soak]'
	$(BIN)/python -m pytest -n 0 -s tests/soak/soak_*.py
	$(BIN)/python -m tests.soak.fuzz_readers
	$(BIN)/python -m tests.soak.fuzz_masker
	$(BIN)/python -m tests.soak.fuzz_policies

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(if $(WITHOUT_TORCH),,$(BIN)/mypy)

install: $(VENV)/.installed

bench: $(VENV)/.installed
	$(PIP) install --quiet $(CONSTRAINTS) --editable '.[$(EXTRAS),bench]'
	$(BIN)/python benchmarks/curate.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/detection.py
	$(BIN)/python benchmarks/dedup.py
	$(BIN)/python benchmarks/dedup_cost.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints/cpu.txt
	$(if $(WITHOUT_TORCH),,$(PIP) install --quiet -c constraints/cpu.txt torch)
	$(PIP) install --quiet $(CONSTRAINTS) --editable '.[$(EXTRAS)]'
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) install --quiet $(CONSTRAINTS) --editable '.[$(EXTRAS),dev]'
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) install --quiet $(CONSTRAINTS) --editable '.[$(EXTRAS),docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
