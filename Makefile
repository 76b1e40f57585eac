# Every target makes .venv first if it is missing. `make check` and `make test` are all that a fresh machine needs.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
IMPLEMENTATIONS := \
	--implementation python:dflash_vectors.implementations.reference:create \
	--implementation python:dflash_accelerated.conformance:create \
	--implementation python:dflash_vectors.peers.authors:create \
	--implementation python:dflash_vectors.peers.transformers_qwen3:create
NATIVE := --implementation python:dflash_accelerated.conformance:native

JUDGED := \
	--implementation python:dflash_vectors.implementations.reference:create \
	--implementation python:dflash_accelerated.conformance:create \
	--implementation python:dflash_vectors.peers.authors:create

.PHONY: setup check test lint kill law vectors wheel constraints clean

## the environment alone, in .venv
setup: $(READY)

## main job: generate the vectors, run every implementation at hand against them, print the verdict table
check: $(READY)
	$(BIN)/python tools/gen_vectors.py --check
	if $(BIN)/python -m dflash_accelerated.native; then native="$(NATIVE)"; \
	else echo "the table has no column for the kernels in C"; fi; \
	$(BIN)/python tools/check_vectors.py $(IMPLEMENTATIONS) $$native

## the whole test suite, linters and type checker included
test: $(READY) lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

## every known fault against the vectors: 100 % must die
kill: $(READY)
	$(BIN)/python tools/kill_faults.py

## the law of every draw and verify of the implementations at hand, and of engines that are wrong on purpose
law: $(READY)
	$(BIN)/python tools/check_law.py $(JUDGED) --samples 20000
	$(BIN)/python tools/check_law.py --controls

## write the committed vectors again
vectors: $(READY)
	$(BIN)/python tools/gen_vectors.py --accept-new

wheel: $(READY)
	$(BIN)/python -m pip wheel --no-deps -q -w dist .

constraints: $(READY)
	$(BIN)/python -m pip freeze --exclude-editable

clean:
	rm -rf .venv dist build

# The authors' package pins heavy data libraries that decoding does not need, hence --no-deps.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[accelerated,peers,test]'
	$(BIN)/python -m pip install -q --no-deps dflash==0.1.0
	touch $@
