# The two commands of the README. Each makes its own virtual environment and needs nothing but Python 3.11 or later.
PYTHON ?= python3
# The newest torch that a wheel on disk installs without gigabytes of CUDA libraries; TORCH=torch==2.15.0 chooses another.
TORCH ?= torch>=2.11,<2.14
RUN := .venv-run
TEST := .venv-test

# A run and its tests start many processes, each of which would compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test check docs clean

# The main job: the suites on every device this machine has, then the report. DEVICES="cpu virtual:cuda" chooses.
run: $(RUN)/ready
	$(RUN)/bin/ampcheck run $(foreach device,$(DEVICES),--device $(device))$(if $(ARGS), $(ARGS)); \
	status=$$?; $(RUN)/bin/ampcheck report && exit $$status

# Every test that does not take long: types and lint, the library's own, those in a process with the jax device, a few cases of each kind of the
# suites, which `make run` runs whole. ARGS=--nightly adds the tests marked so: whole commands that take long, and all
# cases of the suites. Many processes make the jax device and compile the same programs, which they leave to each other.
# A worker gets the tests of a file, so that what they share is made once. A choice by ARGS may leave a session without
# tests: it ends with 5.
# The suites run as users run them, a process for each backend: PyTorch has one accelerator in a process.
test: export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/$(TEST)/jax-cache
test: $(TEST)/ready
	./scripts/ensure-chromium
	$(MAKE) check
	$(TEST)/bin/python -m pytest tests -q -n auto --dist loadfile $(ARGS) $(if $(ARGS),|| [ $$? -eq 5 ])
	$(TEST)/bin/python -m pytest tests/jax -q -rs -n auto --dist loadfile $(ARGS) $(if $(ARGS),|| [ $$? -eq 5 ])
	$(if $(ARGS),$(TEST)/bin/python -m pytest suites -q -n auto --dist worksteal $(ARGS) || [ $$? -eq 5 ],$(TEST)/bin/ampcheck run --smoke)

check: $(TEST)/ready
	$(TEST)/bin/ruff check .
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/mypy
	$(TEST)/bin/lint-imports --no-cache

# The parts of docs/ that are made of code and data. docs/jax_ops.md takes an hour: python -m scripts.jax_coverage --write docs/jax_ops.md
docs: $(TEST)/ready
	$(TEST)/bin/python -m scripts.findings
	$(TEST)/bin/python -m scripts.api_page
	$(TEST)/bin/python -m scripts.mistakes
	$(TEST)/bin/python -m scripts.private_api
	$(TEST)/bin/ampcheck lists cuda cpu xpu mps mtia maia torch_npu torch_musa torch_mlu torchax jax --torch 2.13 --markdown > docs/autocast_lists.md
	$(TEST)/bin/python -m scripts.coverage_pages
	$(TEST)/bin/python -m scripts.backends
	$(TEST)/bin/python -m scripts.outputs
	$(TEST)/bin/python -m scripts.torchscript_graphs
	$(TEST)/bin/python -m ampcheck.bench.run.readme

# torch comes first: the TorchScript operators and the emulated device are compiled against it while the package is built.
# Modules are compiled as they are imported: most of torch never is.
$(RUN)/ready: pyproject.toml setup.py $(wildcard ampcheck/*/csrc/* ampcheck/*/*/csrc/*)
	$(PYTHON) -m venv $(RUN)
	$(RUN)/bin/pip install --quiet --disable-pip-version-check --no-compile '$(TORCH)'
	$(RUN)/bin/pip install --quiet --disable-pip-version-check --no-compile --editable '.[bench,jax]'
	touch $@

$(TEST)/ready: pyproject.toml setup.py $(wildcard ampcheck/*/csrc/* ampcheck/*/*/csrc/*)
	$(PYTHON) -m venv $(TEST)
	$(TEST)/bin/pip install --quiet --disable-pip-version-check --no-compile '$(TORCH)'
	$(TEST)/bin/pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev,jax]'
	touch $@

clean:
	rm -rf $(RUN) $(TEST) build *.egg-info reports/runs reports/site
