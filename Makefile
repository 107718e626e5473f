# Everything happens in .venv, made from $(PYTHON) when it is first needed.
# `make run PYTHON=python3.12` takes another Python, `make run EXTRAS=netcdf,ml` installs extras too, and
# `make test ARGS='-k docs'` passes arguments to pytest.

PYTHON ?= python3
ARGS ?=
EXTRAS ?=
# Debian's Python cannot put pip into an environment unless python3-venv is installed.
WITHOUT_PIP = $(shell $(PYTHON) -c 'import ensurepip' 2>/dev/null || echo --without-pip)
# Tests often wait for the disk or for another process: one more at a time than there are cores.
WORKERS := $(shell expr $$(nproc) + 1)
VENV := .venv
BIN := $(VENV)/bin
KERNELS := mpired/ops/native/kernels.c.so
OLDEST := .venv-oldest
OLDEST_TESTS := tests/test_options.py $(addprefix tests/cli/test_,info.py itself.py messages.py types.py) \
	tests/cli/bad_inputs/test_refusals.py tests/collectives/test_formats.py \
	$(addprefix tests/formats/test_,columns.py formats.py npy.py) \
	tests/formats/test_arrow.py::test_elements_from_any_one_on \
	tests/formats/test_parquet.py::test_an_encrypted_column_ends_its_worker_without_a_word \
	tests/sources/test_remote_ranks.py::test_the_same_bits_as_of_files \
	tests/sources/test_remote_failures.py::test_or_one_error \
	tests/files/test_uploads.py::test_an_upload_that_fails_leaves_nothing

# Where Python cannot put pip into an environment, that of $(PYTHON) works on it from outside. What a wheel has besides the
# package is not made for an editable installation.
define install
	@echo "pip install -e '$(1)'"
	@if [ -x $(BIN)/pip ]; then pip="$(BIN)/python -m pip"; else pip="$(PYTHON) -m pip --python $(BIN)/python"; fi; \
		HATCH_BUILD_NO_HOOKS=true $$pip --disable-pip-version-check --quiet install -e '$(1)'
endef

# Tests start thousands of commands, and not every environment lets Python keep what it compiles.
define compile
	@$(1)/python -m compileall -q mpired
endef

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run extras test test-long test-oldest check size transcripts faults docs site bench bench-plot clean

help: ## Show these lines.
	@echo "Targets of this Makefile:"
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1\t/p' Makefile | expand -t 20

run: $(VENV)/.run $(if $(EXTRAS),extras) ## Install into .venv, add four files of sample_data and print the sums.
	@echo "Four files hold 12 numbers each. This adds them, number by number:"
	$(BIN)/mpired reduce -q --op sum sample_data/counts_?.npy --to text | paste -s -d ' '
	@echo "mpired is installed in $(VENV). To use it in this shell, type: . $(BIN)/activate"

test: $(VENV)/.test ## Install with the test tools and run all tests.
	$(call compile,$(BIN))
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-long: $(VENV)/.test ## The tests that have a long form, in that: about an hour.
	$(call compile,$(BIN))
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --long --timeout 3600 $(ARGS)

test-oldest: $(OLDEST)/.made ## Commands and formats with the oldest versions of what mpired needs.
	$(call compile,$(OLDEST)/bin)
	$(OLDEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(OLDEST_TESTS) $(ARGS)

check: $(VENV)/.dev ## What CI runs: format, lint, types, and all tests, which find stale docs too; the size.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(call compile,$(BIN))
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)
	@$(BIN)/python tests/gates/size.py

size: $(VENV)/.test ## Print the size of the program beside its budget.
	@$(BIN)/python tests/gates/size.py

transcripts: $(VENV)/.test ## Compare the results of 3,500 commands with the record; ARGS=--add, ARGS=--record record.
	$(BIN)/python tests/gates/transcripts.py $(ARGS)

faults: $(VENV)/.test ## Break a copy of mpired in 150 ways, and list what no test notices: tests/gates/faults.py.
	$(BIN)/python tests/gates/faults.py $(ARGS)

docs: $(VENV)/.test ## Write the pages and pictures that are made from tables: docs/ops.md, options.md, speed.md, pictures, the stub.
	PATH="$(CURDIR)/$(BIN):$$PATH" sh docs/ops.sh > docs/ops.md.new
	mv docs/ops.md.new docs/ops.md
	$(BIN)/python docs/options.py > docs/options.md.new
	mv docs/options.md.new docs/options.md
	$(BIN)/python docs/stubs.py | $(BIN)/ruff format - --stdin-filename stub.pyi > mpired/__init__.pyi.new
	mv mpired/__init__.pyi.new mpired/__init__.pyi
	$(BIN)/python docs/speed.py > docs/speed.md.new
	mv docs/speed.md.new docs/speed.md
	$(BIN)/python docs/performance.py > docs/performance.md.new
	mv docs/performance.md.new docs/performance.md
	$(BIN)/python docs/pictures/draw.py docs/pictures
	$(BIN)/python docs/plots/draw.py docs/plots

site: $(VENV)/.docs ## Build the documentation as a site in build/site, strictly.
	$(BIN)/python docs/site/build.py

bench: $(VENV)/.test ## Compare the speed with other ways to do the same.
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-plot: $(VENV)/.test ## Measure what a reduction costs, and draw it: docs/performance.md, docs/plots. Ten minutes, 9 GB.
	$(call compile,$(BIN))
	$(BIN)/python docs/plots/measure.py $(ARGS)
	$(BIN)/python docs/performance.py > docs/performance.md.new
	mv docs/performance.md.new docs/performance.md
	$(BIN)/python docs/plots/draw.py docs/plots

clean: ## Remove .venv, caches and builds.
	rm -rf $(VENV) $(OLDEST) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/*.md.new $(KERNELS)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

extras: $(VENV)/.run
	$(call install,.[$(EXTRAS)])

# Where there is no C compiler, it says so and makes none: mpired works without.
$(KERNELS): mpired/ops/native/kernels.c build_kernels.py
	@$(PYTHON) build_kernels.py

# The stamps are newer than pyproject.toml when what it asks for is installed.
$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "mpired needs Python 3.11 or later, and there is no '$(PYTHON)';" \
		"name one, as in: make run PYTHON=/usr/bin/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mpired needs Python 3.11 or later," \
		"but '$(PYTHON)' is $$($(PYTHON) --version 2>&1); name another, as in: make run PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(strip $(WITHOUT_PIP) $(VENV))
	@touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml | $(KERNELS)
	$(call install,.)
	@touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml | $(KERNELS)
	$(call install,.[test])
	@touch $(VENV)/.run $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml | $(KERNELS)
	$(call install,.[dev])
	@touch $(VENV)/.run $(VENV)/.test $@

$(VENV)/.docs: $(VENV)/.made pyproject.toml | $(KERNELS)
	$(call install,.[docs])
	@touch $(VENV)/.run $@

# Every bound `>=` in pyproject.toml becomes `==`.
$(OLDEST)/.made: $(VENV)/.made pyproject.toml | $(KERNELS)
	$(PYTHON) -m venv $(strip $(WITHOUT_PIP) $(OLDEST))
	$(BIN)/python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
		print(*project['dependencies'], *project['optional-dependencies']['remote'], sep='\n')" \
		| sed 's/>=/==/' > $(OLDEST)/oldest.txt
	@echo "pip install -e '.[hdf5,ml,remote,zarr]' -c $(OLDEST)/oldest.txt"
	@if [ -x $(OLDEST)/bin/pip ]; then pip="$(OLDEST)/bin/python -m pip"; \
		else pip="$(PYTHON) -m pip --python $(OLDEST)/bin/python"; fi; \
		HATCH_BUILD_NO_HOOKS=true $$pip --disable-pip-version-check --quiet install -c $(OLDEST)/oldest.txt \
		-e '.[hdf5,ml,remote,zarr]' boto3 flask flask-cors hatchling hypothesis 'moto[s3]>=5.1' netCDF4 'pytest>=8' \
		pytest-timeout pytest-xdist safetensors
	@touch $@
