# make quickstart   install, then train two tiny agents on CPU
# make demo         install, then train two SmolLM2-135M to divide a text between them (10 to 13 minutes)
# make test         install, then run the tests of a change (at most 10 minutes)
# make test-slow    install, then run the slow tests
# make test-nightly install, then run the slowest tests, of parts that rarely change
# make test-all     all three
# make docs         build the documentation site into build/docs; fails on a broken link
# make wheel        build a wheel into build/wheel
# make setup        install only (into .venv; does nothing when it is up to date)
# make check        linter, formatter, type check, import layers
# make lock         write constraints/ again, after a change of setup.py

PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart demo test test-slow test-nightly test-all docs wheel setup check style types imports lock

quickstart: setup
	$(BIN)/python -m marl_ray.train_magrpo --config configs/quickstart.yaml

demo: setup
	$(BIN)/python -m marl_ray.train_magrpo --config configs/magrpo_tags_smollm2.yaml \
		--override output.run_name=demo output.resume=auto
	$(BIN)/python -m benchmarks.tags --show runs/demo

test: setup
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not slow"

test-slow: setup
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "slow and not nightly"

test-nightly: setup
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m nightly

test-all: test test-slow test-nightly

docs: setup
	$(BIN)/mkdocs build --strict --quiet

wheel:
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir build/wheel .

# Independent of each other: .ci/run gives them two jobs.
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
