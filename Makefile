# `make demo` and `make test` set up what they need, once. Without CUDA packages:
# make demo TORCH='torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu'
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
DEV    := $(VENV)/ready-dev
NATIVE := $(shell find src -name '*.c' -o -name '*.h')
SUFFIX  = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
CHECKED = -O1 -g -std=gnu11 -shared -fPIC -I$(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
PIP    := -m pip install --quiet --disable-pip-version-check
TORCH  := torch==2.13.0
PYTHON_VERSION ?= $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
PLATFORM ?= manylinux2014_$(shell uname -m)
SITE   := build/site-$(PYTHON_VERSION)
EXTRAS := $(PYTHON) -c 'import sys, tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	print(*(line for name in sys.argv[1:] for line in extras[name]), sep="\n")'

.PHONY: demo test check format docs bench docs-numbers mutants fuzz sanitize threads hashes long wheel lowest site kernel uninstalled clean

demo: $(READY)
	$(BIN)/pfed1bs compare recipes/digits.toml --algorithms pfed1bs,local,fedavg,pfed1bs-delta --seeds 0,1 --rounds 50

test: $(DEV)
	tools/suite

check: $(DEV)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

# The site, in an environment of its own that needs no torch; a warning is an error.
docs: build/site/ready
	NO_MKDOCS_2_WARNING=1 build/site/bin/mkdocs build --quiet
	@echo build/docs/index.html

build/site/ready: pyproject.toml constraints-docs.txt
	$(PYTHON) -m venv --clear build/site
	$(EXTRAS) docs | build/site/bin/python $(PIP) -c constraints-docs.txt -r /dev/stdin
	@touch $@

bench: $(READY)
	$(BIN)/pfed1bs bench kernels

# Tables and pictures of the rows in results/, then README and docs with them; says which numbers have no source.
docs-numbers: $(READY)
	$(BIN)/pfed1bs reproduce all --draw
	$(BIN)/python benchmarks/front.py ends results/mnist-all-r.json --out results/accuracy-bytes.svg
	$(BIN)/python benchmarks/front.py figure results/front.json --out results/front.svg
	$(BIN)/python tools/sheet.py $(patsubst %.md,%.json,$(wildcard results/*.md))
	$(BIN)/python tools/quotes.py --write
	$(BIN)/python tools/sources.py --write

# Faults put into the code one by one, and which of them no test sees: an hour.
mutants: $(DEV)
	$(BIN)/python tools/mutants.py --count 300 --seed 0 --out results/mutants.json

# Inputs that nobody meant, guided by coverage: 30 minutes of messages, 5 of every other reader.
fuzz: $(DEV)
	$(PYTHON) -m venv --clear --system-site-packages build/fuzz
	realpath $(VENV)/lib/python*/site-packages > $$(echo build/fuzz/lib/python*/site-packages)/beside.pth
	build/fuzz/bin/python $(PIP) -c constraints.txt atheris
	OMP_NUM_THREADS=1 build/fuzz/bin/python fuzz/run.py --parallel $$(nproc) --out results/fuzz.json

# Whether the package index offers the files that were tested; nothing is installed.
hashes:
	$(PYTHON) -m venv --clear build/hashes
	build/hashes/bin/python $(PIP) --dry-run --no-deps --require-hashes -r constraints-hashes.txt

# The kernels under the address and undefined-behaviour sanitizers, with the tests that call them.
sanitize: $(READY)
	rm -rf build/sanitize && mkdir -p build/sanitize && cp -r src build/sanitize/src
	$(CC) $(CHECKED) -fsanitize=address,undefined -fno-sanitize-recover=undefined src/pfed1bs/core/_fht.c \
		-o build/sanitize/src/pfed1bs/core/_fht$(SUFFIX)
	PYTHONPATH=build/sanitize/src ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
		$(BIN)/python -m pytest --require-kernel tests/core tests/wire

# The kernels from several threads at once under the thread sanitizer.
threads: $(READY)
	rm -rf build/threads && mkdir -p build/threads
	$(CC) $(CHECKED) -fsanitize=thread src/pfed1bs/core/_fht.c -o build/threads/_fht$(SUFFIX)
	$(CC) $(CHECKED) -fsanitize=thread tools/pool.c -o build/threads/pool.so
	LD_PRELOAD="$$($(CC) -print-file-name=libtsan.so) $(CURDIR)/build/threads/pool.so" \
		$(BIN)/python tools/races.py build/threads

# What takes too long for every change.
long: wheel lowest uninstalled sanitize threads

# A wheel and an sdist, each installed into an empty environment and used there.
wheel:
	rm -rf dist src/*.egg-info
	$(PYTHON) -m venv --clear build/tools
	build/tools/bin/python $(PIP) -c constraints.txt build
	PIP_CONSTRAINT=constraints.txt build/tools/bin/python -m build
	.ci/contents dist
	PYTHON=$(PYTHON) .ci/smoke dist/*.whl
	PYTHON=$(PYTHON) .ci/smoke dist/*.tar.gz

# The lower bounds of pyproject.toml, run.
lowest:
	rm -rf build/lib* build/bdist*
	$(PYTHON) -m venv --clear build/lowest
	build/lowest/bin/python $(PIP) -c constraints-lowest.txt $(TORCH)
	PIP_CONSTRAINT=constraints-lowest.txt build/lowest/bin/python $(PIP) '.[cli,flower]' pytest hypothesis
	build/lowest/bin/python -m pytest -W default --require-kernel

# The packages of the terminal extra for another Python, to be carried to a machine where nothing can be installed.
site:
	rm -rf $(SITE)
	$(EXTRAS) terminal | $(PYTHON) $(PIP) --no-compile --target $(SITE) --only-binary=:all: --platform $(PLATFORM) \
		--python-version $(PYTHON_VERSION) -c constraints.txt -r /dev/stdin
	du -sh $(SITE)

# The kernels for $(PYTHON) into the source, for a machine where nothing can be installed but a compiler is.
kernel:
	$(CC) -O3 -std=gnu11 -shared -fPIC -I$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_paths()["include"])') \
		src/pfed1bs/core/_fht.c -o src/pfed1bs/core/_fht$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')

# A comparison from the source and the carried folder; only torch and the data and report extras are installed.
uninstalled: site
	$(PYTHON) -m venv --clear build/bare
	build/bare/bin/python $(PIP) -c constraints.txt $(TORCH)
	$(EXTRAS) data report | build/bare/bin/python $(PIP) -c constraints.txt -r /dev/stdin
	rm -rf build/uninstalled src/*.egg-info
	PYTHONPATH=src:$(SITE) build/bare/bin/python -m pfed1bs compare recipes/digits.toml --algorithms local --seeds 0 \
		--rounds 2 --out build/uninstalled

$(READY) $(DEV): pyproject.toml constraints.txt $(NATIVE)
	@PYTHON=$(PYTHON) TORCH="$(TORCH)" tools/setup $(VENV) $(if $(filter $(DEV),$@),dev,cli)
	@touch $(READY) $(if $(filter $(DEV),$@),$@)

clean:
	rm -rf $(VENV) build dist src/*.egg-info
	find src -name '*.so' -delete
