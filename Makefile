# make quickstart   install, then train two tiny agents on CPU
# make test         install, then run the tests
# make setup        install only (into .venv; does nothing when it is up to date)
# make check        linter, formatter, type check, and which way imports run
# make lock         write constraints/ again, after a change of setup.py

PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test setup check style types imports lock

quickstart: setup
	$(BIN)/python -m marl_ray.train_magrpo --config configs/quickstart.yaml

test: setup
	$(BIN)/python -m pytest

# Side by side: .ci/run gives it two jobs.
check: style types imports

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

lock:
	tools/lock.sh

setup: .venv/.installed

.venv/.installed: setup.py install.sh constraints/cpu.txt
	PYTHON=$(PYTHON) ./install.sh
	touch $@
