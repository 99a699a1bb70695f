# Every target makes .venv and installs what it needs; when nothing changed that costs nothing.
PYTHON ?= python3
SHELL := /bin/bash -o pipefail
BIN := .venv/bin

.PHONY: bench-first demo reproduce study test test-all mutants lint docs bench bench-law bench-optim reliability clean

# A tour on one page: what the library is for, measured here, in at most two minutes after the installation.
demo: .venv/installed
	$(BIN)/langevin-paper demo --out out/demo

# Figures 1 to 4 and tables 1 and 2 at the paper's own scale; `langevin-paper list` estimates the minutes of these and of the others
# (MNIST: hours; CIFAR: a GPU). Killed, it goes on where it stopped.
reproduce: .venv/installed
	$(BIN)/langevin-paper run gaussian mixture ravine ravine-search landsat --scale paper --jobs 2 --out out/records
	$(BIN)/langevin-paper report --records out/records --out out/report

# The invariant forms beside the published ones: some 20 minutes on two cores. Killed, it goes on where it stopped.
study: .venv/installed
	OMP_NUM_THREADS=2 $(BIN)/langevin-paper run $(STUDY) --scale paper --jobs 2 --out out/study/records
	$(BIN)/langevin-paper report --records out/study/records --out out/study
STUDY := invariant-law invariant-integrator invariant-efficiency invariant-ravine

# Two tests at a time (JOBS=1 for one), each on one thread: pairs of threads would wait for each other.
JOBS ?= 2
test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

test-all: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m ""

# Break the library in one line, many times: a test must see each (tools/mutants.py). Minutes.
mutants: .venv/installed
	$(BIN)/python tools/mutants.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, into out/site; a link that leads nowhere is an error. Open out/site/index.html.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Time to the first posterior; PEERS is the python of an environment with numpyro.
bench-first: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/first_posterior.py $(if $(PEERS),--peers $(PEERS)) | tee docs/benchmarks/first_posterior.txt

bench: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/compile.py | tee docs/benchmarks/compile.txt
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/training_step.py | tee docs/benchmarks/training_step.txt
	$(BIN)/python benchmarks/noise.py | tee docs/benchmarks/noise.txt
	$(BIN)/python benchmarks/layouts.py | tee docs/benchmarks/layouts.txt
	$(BIN)/python benchmarks/optim.py
	$(BIN)/python benchmarks/generated.py | tee docs/benchmarks/generated.txt
	$(BIN)/python benchmarks/sample.py
	$(BIN)/python benchmarks/growth.py
	for part in import first compiled; do $(BIN)/python benchmarks/waiting.py $$part; done | tee docs/benchmarks/waiting.txt
	$(BIN)/python benchmarks/second_call.py | tee docs/benchmarks/second_call.txt
	$(BIN)/python benchmarks/predict.py | tee docs/benchmarks/predict.txt
	$(BIN)/python benchmarks/memory.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/blocks.py | tee docs/benchmarks/blocks.txt
	$(BIN)/python benchmarks/scale.py | tee docs/benchmarks/scale.txt

# What settings are worth, in errors and draws, not in seconds: about an hour.
bench-law: .venv/installed
	$(BIN)/python benchmarks/control_variates.py
	$(BIN)/python benchmarks/step_size.py | tee docs/benchmarks/step_size.txt
	$(BIN)/python benchmarks/work.py | tee docs/benchmarks/work.txt
	$(BIN)/python benchmarks/corrected_forms.py | tee docs/benchmarks/corrected_forms.txt
	$(BIN)/python benchmarks/kronecker.py | tee docs/benchmarks/kronecker.txt
	$(BIN)/python benchmarks/lint.py | tee docs/benchmarks/lint.txt
	$(BIN)/python benchmarks/sums.py | tee docs/benchmarks/sums.txt
	$(BIN)/python benchmarks/modes.py | tee docs/benchmarks/modes.txt

bench-optim: .venv/installed
	$(BIN)/python benchmarks/optim.py

# Kills, damaged bytes, abused memory and nonsensical arguments: some minutes, writes docs/reliability.md.
reliability: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.reliability

.venv/installed: pyproject.toml paper/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "langevin needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]" --editable paper
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
