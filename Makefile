# make run    set up, then optimize a few tasks and print the report (three minutes)
# make test-fast  set up, then run the tests that build next to nothing
# make test   set up, then run the tests, but for slow ones and those of task files that have not changed
# make test-part  set up, then run a tenth of what `make test` leaves out, another for each commit, or PART=0 to 9
# make test-all  set up, then run all tests
# make test-verl  set up .venv-verl, run the tests that need verl (docs/verl.md)
# make test-trainers  set up .venv-trainers, run the tests that need other trainers' libraries (docs/trainers.md)
# make check  lint, format check and types
# make gpu-1  try on a GPU: does it run there; gpu-2: is it right; gpu-3: how good is it (docs/gpu.md); with the
#             machine's own Python, or PYTHON=.venv/bin/python
# make bench  measure the numbers in results/published/cpu (hours, on two cores)

PYTHON ?= python3
# The newest torch that kernelwright is tested with. For a CPU-only build, have pip find one, e.g. through
# PIP_EXTRA_INDEX_URL, and name it here.
TORCH ?= torch==2.13.0
BIN := .venv/bin
# pip compiles what it installs one file after the other; this takes all CPUs, and leaves out tests
# and pip. Some packages hold files that are no Python of this version.
INSTALL := $(BIN)/pip install --quiet --no-compile
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/(tests?|_internal|pip)/' .venv/lib || true
# Images set it; without bytecode each process of the tests would compile them and kernelwright again.
unexport PYTHONDONTWRITEBYTECODE
OUT ?= runs/$(shell date +%Y-%m-%d-%H%M%S)

TASKS := builtin:level1/rms_norm builtin:level1/gelu_tanh builtin:level1/cross_entropy builtin:level1/matmul_square

# Tests run on twice as many processes as the machine has CPUs, fast ones on as many, if there is memory for them
# (tests/conftest.py); those that hold times against each other run alone.
WORKERS ?= auto
# Two hexadecimal digits of the commit.
PART ?= $(shell printf '%d' 0x0$$(git rev-parse HEAD 2>/dev/null | cut -c 39-40))
PARALLEL := --numprocesses=$(WORKERS) --dist=worksteal
# What another lane runs is not even collected: that alone would import all of Transformers.
TIMED = $(shell grep -rl --include='test_*.py' 'pytest.mark.timed' tests)
TRAINING = $(shell grep -rl --include='test_*.py' '^pytestmark = .*pytest.mark.training' tests)

.PHONY: run test-fast test test-part test-all test-verl test-trainers check bench clean gpu-1 gpu-2 gpu-3
.DELETE_ON_ERROR:

run: .venv/ready
	$(BIN)/kernelwright run $(TASKS) --rounds 2 --effort quick --out $(OUT)

test-fast: WORKERS = logical
test-fast: .venv/ready-dev
	$(BIN)/pytest -m "one_kernel or not (builds or corpus or redteam or training or slow or not_fast or timed)" \
		--suite=changed $(TRAINING:%=--ignore=%) $(PARALLEL)

test: .venv/ready-dev
	$(BIN)/pytest -m "not (slow or timed)" --suite=changed $(PARALLEL)
	$(BIN)/pytest -m "timed and not slow" $(TIMED)

test-part: .venv/ready-dev
	$(BIN)/pytest -m "(slow or suite) and not timed" --part=$(PART) $(PARALLEL)
	$(BIN)/pytest -m "timed and slow" --part=$(PART) $(TIMED); [ $$? -eq 0 -o $$? -eq 5 ]

test-all: .venv/ready-dev
	$(BIN)/pytest -m "not timed" $(PARALLEL)
	$(BIN)/pytest -m timed $(TIMED)

test-verl: .venv-verl/ready
	.venv-verl/bin/python -m pytest -p no:xdist tests/rl_training -k verl

check: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

gpu-1 gpu-2 gpu-3:
	$(PYTHON) -m tests.gpu.acceptance $(@:gpu-%=%) --out $(OUT)

bench: .venv/ready-dev
	$(BIN)/python -m benchmarks all

.venv/ready: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON) — install Python 3.11 to 3.14, or name it: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || \
		{ echo "error: $(PYTHON) is not Python 3.11 to 3.14 — name one that is: make PYTHON=python3.12" >&2; exit 2; }
	@command -v $${CXX:-g++} >/dev/null || { echo "error: no C++ compiler — install g++ (Debian, Ubuntu: apt-get install g++) or set CXX" >&2; exit 2; }
	@$(PYTHON) -m venv .venv || { echo "error: no venv module — Debian, Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	$(BIN)/pip install --quiet --upgrade pip
	$(INSTALL) $(TORCH) --editable .
	@$(COMPILE)
	@touch $@

.venv/ready-dev: .venv/ready
	$(INSTALL) --editable '.[dev]'
	@$(COMPILE)
	@touch $@

# Each in an environment of its own, since they pin openai, mcp and others differently. OpenRLHF goes beside
# ours, with our torch: what its executors of replies import, without deepspeed and flash-attn.
TRAINERS := verifiers openenv skyrl nemo_gym openrlhf
test-trainers: .venv/ready-dev $(TRAINERS:%=.venv-trainers/%/ready)
	$(BIN)/pytest tests/rl_training/test_trainer_libraries.py

.venv-trainers/verifiers/ready: PACKAGE = 'verifiers>=0.4,<0.5'
.venv-trainers/openenv/ready: PACKAGE = 'openenv>=0.10,<0.11'
.venv-trainers/skyrl/ready: PACKAGE = 'skyrl-gym>=0.4,<0.5'
.venv-trainers/nemo_gym/ready: PACKAGE = 'nemo-gym>=0.4,<0.5'
.venv-trainers/nemo_gym/ready: PYTHON = python3.12
.venv-trainers/%/ready:
	$(PYTHON) -m venv .venv-trainers/$*
	.venv-trainers/$*/bin/pip install --quiet --no-compile $(PACKAGE)
	touch $@

.venv-trainers/openrlhf/ready: .venv/ready-dev
	$(BIN)/pip install --quiet --no-deps --target .venv-trainers/openrlhf/site 'openrlhf>=0.11,<0.12' pylatexenc optree
	touch $@

# verl takes an older transformers than the rest: an environment of its own. torch first, for pip would
# have another build of it.
.venv-verl/ready: pyproject.toml
	$(PYTHON) -m venv .venv-verl
	.venv-verl/bin/pip install --quiet --no-compile $(TORCH)
	.venv-verl/bin/pip install --quiet --no-compile $(TORCH) --editable '.[verl]' 'pytest>=8.3,<10' 'pytest-timeout>=2.3,<3'
	@touch $@

clean:
	rm -rf .venv .venv-verl .venv-trainers build *.egg-info .mypy_cache .ruff_cache .pytest_cache
