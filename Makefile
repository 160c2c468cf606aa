# make quickstart   install, then train two tiny agents on CPU
# make test         install, then run the tests
# make setup        install only (into .venv; does nothing when it is up to date)
# make check        linter, formatter and type check

PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test setup check

quickstart: setup
	$(BIN)/python -m marl_ray.train_magrpo --config configs/quickstart.yaml

test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: .venv/.installed

.venv/.installed: setup.py install.sh
	PYTHON=$(PYTHON) ./install.sh
	touch $@
