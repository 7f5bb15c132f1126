# make run PROMPT="…"   answer a prompt with the demo model
# make chat             converse with the demo model in the terminal UI
# make serve            answer the requests of OpenAI's clients with the demo model
# make test             run all tests (minutes)
# make quick            run the fast tests of decoding, without the demo model (half a minute)
# make fuzz             damage files, arguments and models for half an hour; SEED=1 damages others
# make parity           compare models with transformers on torch, which is installed for it
# make lint             check style and types
# make docs             write the generated tables of the documentation (make docs-check: are they current?)
# make gpu              prove that MLX computes on a GPU here
# make as-gpu           run the tests of what a GPU does otherwise: compiled, in half precision, packed
# make browser          check the types of the server's page, and try it in a Chromium
# make newest           bring the dependencies to their newest versions
# make vendor           bundle what the server's page takes from npm (packaging/page)
# make wheel            build the package into dist/; make check-wheel installs and runs it
# make release-notes TAG=v0.1.0   print what a release brings; make formula writes Homebrew's formula
#
# Each sets up what it needs in .venv, from a bare Python 3.11 or later.

VENV := .venv
# What draws random cases: files, arguments, models, documents, requests and keys.
FUZZED := tests/fuzz tests/server/test_mistakes.py tests/tui/test_walk.py
TORCH := torch
CORE := answer chat engine profiles samplers unit
BIN := $(VENV)/bin
# The first interpreter that is new enough; name another with PYTHON=…
CANDIDATES := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

.PHONY: help run chat serve test quick fuzz lint docs docs-check format clean
.PHONY: parity gpu as-gpu browser newest vendor wheel check-wheel release-notes formula
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \?//p;/^VENV/q' Makefile

# Under another name, since make would expand the dollar signs of one given on its command line.
run: export QUESTION := $(value PROMPT)
run: $(VENV)/.demo
	@if [ -z "$$QUESTION" ]; then echo 'say what to ask: make run PROMPT="…"' >&2; exit 2; fi
	@$(BIN)/python -m entropix_mlx generate --prompt "$$QUESTION" $(ARGS)

chat: $(VENV)/.demo
	@$(BIN)/python -m entropix_mlx chat $(ARGS)

serve: $(VENV)/.server
	@$(BIN)/python -m entropix_mlx serve $(ARGS)

test: $(VENV)/.dev $(VENV)/.demo
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

quick: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not model and not slow" $(CORE:%=tests/%) $(ARGS)

fuzz: $(VENV)/.dev $(VENV)/.demo
	FUZZ_TIMES=30 FUZZ_SEED=$(or $(SEED),0) $(BIN)/python -m pytest -n 2 --dist worksteal $(FUZZED) $(ARGS)

parity: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pytest tests/parity $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/python -m docs.generate

docs-check: $(VENV)/.dev
	$(BIN)/python -m docs.generate --check

gpu: $(VENV)/.run
	$(BIN)/python tests/gpu.py

# In one process: MLX compiles for the CPU into files that two would write at once.
as-gpu: $(VENV)/.dev $(VENV)/.demo
	$(BIN)/python -m pytest -m as_gpu $(ARGS)

browser: $(VENV)/.dev $(VENV)/.demo
	$(BIN)/python -m pip install --quiet 'playwright>=1.50'
	npx --yes -p typescript@7.0.2 tsc -p packaging/page
	NEEDS_BROWSER=1 $(BIN)/python -m pytest -m browser $(ARGS)

newest: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable '.[dev]'
	$(BIN)/python -m pip list

vendor:
	cd packaging/page && npm install --no-audit --no-fund && npm run vendor

wheel: $(VENV)/.run
	$(BIN)/python -m pip install --quiet build
	rm -rf dist
	$(BIN)/python -m build

# In an environment of its own, from another folder: neither sees the source.
check-wheel: $(VENV)/.run
	rm -rf build/clean
	$(BIN)/python -m venv build/clean
	build/clean/bin/python -m pip install --quiet dist/*.whl
	cd build/clean && bin/python ../../packaging/check_wheel.py ../../dist/*.whl
	build/clean/bin/entropix generate --yes --prompt "What is the capital of France?" --max-tokens 8

release-notes:
	@python3 packaging/changelog.py "$(TAG)"

formula: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --dry-run --ignore-installed --report build/lock.json dist/*.whl
	$(BIN)/python packaging/formula.py < build/lock.json > packaging/entropix-mlx.rb

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The package alone; .demo adds the demo model, .server and .dev what their targets need.
$(VENV)/.run: pyproject.toml
	@for python in $(CANDIDATES); do \
	    if "$$python" -c "$(NEW_ENOUGH)" 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo 'Python 3.11 or later is needed (brew install python), or make PYTHON=/path/to/it' >&2; exit 2; \
	fi; \
	echo "setting up $(VENV) with $$($$found --version) (once; a minute or two)" >&2; \
	"$$found" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.demo: $(VENV)/.run
	@$(BIN)/python -m entropix_mlx models --download demo >/dev/null
	@touch $@

$(VENV)/.server: $(VENV)/.demo
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[server]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
