# Everything a fresh machine with Python, git and make needs: `make train`, `make demo` and `make test` set up their own environment.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
CODE = src tests benchmarks experiments
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: train demo test test-gpu lint dev clean

# torch comes first and pinned: a range would let pip take a build of several gigabytes
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch -c constraints.txt

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[cli]'
	touch $@

$(VENV)/.train: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[train]'
	touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	touch $@

train: $(VENV)/.train
	$(BIN)/miras train

demo: $(VENV)/.demo
	$(BIN)/miras recall --out recall

dev: $(VENV)/.dev

test: $(VENV)/.dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

# what `make test` does with Triton's interpreter, on a GPU; benchmarks/kernel_numerics.py compares at real sizes
test-gpu: $(VENV)/.dev
	TRITON_INTERPRET=0 $(BIN)/python -m pytest -m gpu

lint: $(VENV)/.dev
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)
	$(BIN)/mypy

clean:
	rm -rf $(VENV) recall build dist
