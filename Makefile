# make          set up .venv and render every kernel
# make test     run the tests (no GPU needed; what needs one is skipped)
# make test-all the long sweeps too: every kernel lowered and run
# make emulate  run the CUDA of every kernel on the CPU: races, barriers, stray accesses (long)
# make mutate   delete each barrier of a kernel per spec and dtype: does the emulator miss it? (long)
# make fuzz     random specs, planned under every policy and judged (long)
# make record   lower what is new in generated/ and remember the bytes it asks for
# make compat   a sample of kernels under every TileLang that is claimed, each in an environment (long)
# make regen    fail unless generated/ and specs/schema.json are exactly what gdngen writes
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
PYTEST := $(VENV)/bin/python -m pytest -n 2 --dist worksteal -q

.PHONY: all render test test-all emulate mutate fuzz record compat regen clean

all: render

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt torch==2.13.0 -e '.[run,test]'
	touch $@

render: $(READY)
	$(VENV)/bin/gdngen render

test: $(READY)
	$(PYTEST) -m "not long"

test-all: $(READY)
	$(PYTEST)

emulate: $(READY)
	$(VENV)/bin/gdngen verify --emulate

mutate: $(READY)
	$(VENV)/bin/gdngen mutate

FUZZ ?= 10000
fuzz: $(READY)
	$(VENV)/bin/python -m gdngen.judge.fuzz --examples $(FUZZ) --seed 0

record: $(READY)
	$(VENV)/bin/python tests/record.py

compat: $(READY)
	$(VENV)/bin/python tests/compat.py

WRITTEN := generated specs/schema.json
regen: $(READY)
	$(VENV)/bin/gdngen check --full
	$(VENV)/bin/gdngen render
	$(VENV)/bin/gdngen schema -o specs/schema.json
	@test -z "$$(git status --porcelain -- $(WRITTEN))" || \
	  { git status --short -- $(WRITTEN); git diff -- $(WRITTEN); \
	    echo "this is not what is committed: commit what 'make regen' wrote"; exit 1; }

clean:
	rm -rf $(VENV) .cache .pytest_cache .hypothesis
