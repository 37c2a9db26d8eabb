# Two commands set everything up: `make demo` and `make test`. Set-up is skipped when it is current.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready

.PHONY: demo test check format bench clean

demo: $(READY)
	$(BIN)/pfed1bs compare recipes/digits.toml --algorithms pfed1bs,local,fedavg,pfed1bs-delta --seeds 0,1 --rounds 50

test: $(READY)
	$(BIN)/python -m pytest --require-kernel

check: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/pfed1bs bench kernels

$(READY): pyproject.toml constraints.txt src/pfed1bs/_fht.c $(wildcard src/pfed1bs/kernels/*.h)
	@echo "setting up $(VENV), once: one to five minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'torch==2.13.0'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build src/*.egg-info src/pfed1bs/*.so
