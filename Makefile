# Every target first installs what it needs into .venv, again whenever pyproject.toml or constraints.txt change.
# Needs Python 3.11 or newer, pip and make. Another interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
REQUIREMENTS := pyproject.toml constraints.txt

.PHONY: venv demo play-networks play-picture test test-portable fuzz kills release-test lint docs clean

venv: $(VENV)/.dev

# The whole paper in miniature, on handwritten digits.
demo: $(VENV)/.report
	$(BIN)/advbnn reproduce all --data digits

# The networks of `advbnn play`, which are in the package: the runs of three configurations, without their checkpoints.
play-networks: export OMP_NUM_THREADS = 1
play-networks: $(VENV)/.run
	set -e; for name in none adv adv_bnn; do \
		rm -rf build/play/$$name; $(BIN)/advbnn train configs/digits-$$name.toml --device cpu --out build/play/$$name; \
		mkdir -p src/advbnn/play/digits/$$name; \
		for file in config.toml run.json model.safetensors SHA256SUMS; do \
			cp build/play/$$name/$$file src/advbnn/play/digits/$$name; done; done

# The picture in docs/play.md; needs Chromium and chromedriver.
play-picture: $(VENV)/.dev
	$(BIN)/python tests/play/screenshot.py docs/images/play.webp

test: export OMP_NUM_THREADS = 1
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2

# The fast numeric tests with the kernels of an old CPU: no test may depend on the last bits of one machine.
test-portable: export ATEN_CPU_CAPABILITY = default
test-portable: export ONEDNN_MAX_CPU_ISA = SSE41
test-portable: export MKL_CBWR = COMPATIBLE
test-portable: export OMP_NUM_THREADS = 1
test-portable: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m "not slow" tests/bayes tests/models tests/attacks tests/evaluation

# Kills short trainings at every file operation, and resumes them; the tests try a few.
kills: export ADVBNN_FUZZ = all
kills: export OMP_NUM_THREADS = 1
kills: $(VENV)/.dev
	$(BIN)/python -m pytest -s tests/training/test_kills.py

# Every wrong value for every option, key and setting, of which the tests try some: counts refusals, runs, tracebacks.
fuzz: export ADVBNN_FUZZ = all
fuzz: export OMP_NUM_THREADS = 1
fuzz: $(VENV)/.dev
	$(BIN)/python -m pytest -s tests/test_fuzz.py tests/cli/test_fuzz.py

# The wheel in an empty environment, outside the repository. The tests try a shorter form, without downloads.
release-test: $(VENV)/.run
	rm -rf dist
	@$(BIN)/python -m pip wheel -qq --no-deps --no-build-isolation --wheel-dir dist .
	set -e; place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; $(PYTHON) -m venv "$$place/env"; \
	"$$place/env/bin/python" -m pip install -qq --disable-pip-version-check --constraint constraints.txt \
		"$$(ls $(CURDIR)/dist/advbnn-*.whl)[report,cluster]"; \
	cd "$$place"; env/bin/advbnn reproduce all --data digits

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.docs $(VENV)/.report
	$(BIN)/mkdocs build --strict
	$(BIN)/advbnn leaderboard build leaderboard --out site/leaderboard/board --docs ../..

clean:
	rm -rf $(VENV) build dist site reproduced .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# torch is installed first and pinned: an open requirement may make the resolver download several builds of it.
# Without build isolation the package is built by the pinned hatchling, and nothing else is downloaded.
$(VENV)/.run: $(REQUIREMENTS) | $(BIN)/python
	@echo "Installing advbnn into $(VENV) (torch is large; this happens once)"
	@$(PIP) torch hatchling editables
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.report: $(VENV)/.run
	@echo "Installing the packages for figures, reports and several processes"
	@$(PIP) --no-build-isolation --editable '.[report,cluster]'
	@touch $@

# Three of the libraries that tests compare with require torchvision or old versions, and need neither.
$(VENV)/.dev: $(VENV)/.run
	@echo "Installing the packages for tests and checks"
	@$(PIP) --no-build-isolation --editable '.[dev,data,report]'
	@$(PIP) --no-deps --no-warn-conflicts torchattacks pyautoattack bayesian-torch
	@touch $@

$(VENV)/.docs: $(VENV)/.run
	@echo "Installing the packages for the documentation"
	@$(PIP) --no-build-isolation --editable '.[docs]'
	@touch $@
