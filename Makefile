# Each target sets up what it needs by itself, from package registries only; a second run takes seconds.
PYTHON ?= python3
MINUTES ?= 5
VENV   := .venv
BIN    := $(VENV)/bin
PACKAGES := kubekit tinykube simgpu gpuplane gpulab
# Of Debian and Ubuntu: what a kubelet needs, Prometheus, which reads the exporter's metrics in a test, and shells that
# complete commands in another; a browser for the dashboard, with a font; programs for pods of Kubernetes' own specs.
KUBERNETES_PACKAGES := runc iproute2 iptables util-linux mount containernetworking-plugins prometheus zsh fish \
    chromium fonts-dejavu-core bind9-dnsutils curl
# Tests of `make test` that need these packages, NVIDIA's runtime, Numba and CuPy (installed once, 1 GB), Playwright, or
# what was built for the real cluster; skipped where it is missing.
WITH_PACKAGES := $(addprefix packages/gpuplane/tests/,exporter/test_prometheus.py operator/test_metrics.py \
    cli/test_completion.py cli/test_answer_pages.py cli/test_status_report.py dashboard/test_browser.py) \
    tests/browser \
    $(wildcard packages/gpuplane/tests/toolkit/test_real_*.py) $(wildcard packages/gpuplane/tests/limiter/programs/test_*.py)
# The commands of whole pages of the documentation; Jupyter for them is installed once, 190 MB.
PAGES := packages/gpulab/tests/pages
RERUNS := --reruns 1 --rerun-show-tracebacks
# Scenarios for any cluster, and the product's own on a real one.
ANY_CLUSTER := packages/tinykube/tests/conformance packages/tinykube/tests/clients
REAL_CLUSTER := packages/gpuplane/tests/kubernetes $(ANY_CLUSTER)

# Modules of another Python are none of the environment's.
unexport PYTHONPATH PYTHONHOME

.PHONY: demo test test-gpu test-pytorch lint bench docs image audit fuzz chaos chart lock setup clean

demo:
	@$(PYTHON) tools/environment.py demo
	@$(BIN)/gpuplane demo

# Two runs: the tests of the second start clusters of processes. Where the machine was too busy for a test, or it was blamed
# for what an earlier one left open, it is tried once more, and the summary names it. The assertions of tests are compiled
# once, also where the environment has Python write no bytecode: that takes ten seconds in each worker.
test: export PYTHONDONTWRITEBYTECODE =
test: setup lint
	@$(BIN)/pytest --clusters without -n auto --dist loadfile --no-loadscope-reorder $(RERUNS); others=$$?; \
	$(BIN)/pytest --clusters only -n auto --dist loadfile --no-loadscope-reorder $(RERUNS) && exit $$others

# The same scenarios on real Kubernetes: built here once (Go 1.26, minutes), then started anew each time. On another
# cluster: make test-kubernetes KUBECONFIG=FILE. What this machine cannot have is skipped, each test saying why. Real
# controllers take turns as they like: what failed is tried once more, and the summary names it. Kubernetes' own specs
# keep both processors busy, and try again by themselves: they run first.
test-kubernetes: setup kubernetes-packages
ifeq ($(origin KUBECONFIG),command line)
	$(BIN)/pytest $(RERUNS) -n 2 --dist loadfile --cluster $(KUBECONFIG) $(ANY_CLUSTER)
else
	$(BIN)/python -m tests.support.jupyter
	$(BIN)/python -m tests.support.cuda_programs || echo "tests of programs for GPUs will be skipped"
	$(BIN)/python -m tests.support.browser || echo "tests of the dashboard in a browser will be skipped"
	$(BIN)/python -m tests.support.realkube
	$(BIN)/pytest --cluster real tests/e2e
	GPUPLANE_TEST_PAGES=1 $(BIN)/pytest $(RERUNS) -n 2 --dist loadfile --no-loadscope-reorder --cluster real \
	    $(WITH_PACKAGES) $(PAGES)
	$(BIN)/pytest $(RERUNS) -n 2 --dist loadfile --no-loadscope-reorder --cluster real $(REAL_CLUSTER)
endif

kubernetes-packages:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && ! dpkg -s $(KUBERNETES_PACKAGES) > /dev/null 2>&1; then \
	    apt-get update --quiet --quiet; \
	    DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends \
	        $(KUBERNETES_PACKAGES) || echo "tests that need a kubelet will be skipped"; \
	fi

lint: setup
	$(BIN)/ruff check packages tests conftest.py benchmarks native tools deploy docs/*.py
	$(BIN)/ruff format --check packages tests conftest.py benchmarks native tools deploy docs/*.py
	$(BIN)/mypy
	MYPYPATH=benchmarks $(BIN)/mypy benchmarks/*.py
	$(BIN)/lint-imports
	$(BIN)/python tools/plain_english.py

# All, or those of an area or of a name: ONLY=scheduler, ONLY="packing burst". With a table in Markdown for each area.
bench: setup
	$(BIN)/python benchmarks/run.py $(ONLY)

docs: setup
	$(BIN)/uv pip install --quiet --python $(BIN)/python mkdocs-material
	$(BIN)/mkdocs build --strict
	$(BIN)/pytest -q tests/docs/test_search.py

image: setup
	$(BIN)/python deploy/image/build.py

# On a machine with a GPU and its driver, in ten minutes: a report in build/gpu-report. ONLY=memory,kills for parts of it.
test-gpu: setup
	$(BIN)/python -m tests.gpu $(if $(ONLY),--only $(ONLY))

# PyTorch as PyPI has it, on simulated GPUs under shares. Its wheel is downloaded once: 776 MB, 1.6 GB on disk.
test-pytorch: setup
	$(BIN)/python -m tests.support.pytorch
	$(BIN)/pytest packages/gpuplane/tests/limiter/programs/test_pytorch.py

# The public parsers, for MINUTES. A finding is kept in tests/fuzz/corpus, which make test reads.
fuzz: setup
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

# An embedded cluster whose processes, API server, disk and clock fail at random for MINUTES, from a seed that is printed.
# SEED=N repeats the choices of a run.
chaos: MINUTES := $(if $(filter command line environment,$(origin MINUTES)),$(MINUTES),10)
chaos: setup
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Known vulnerabilities of what the lock pins, by PyPI's database; nothing is installed but the program that asks.
audit: setup
	$(BIN)/uv tool run pip-audit --disable-pip --require-hashes --requirement requirements.lock $(AUDIT)

# What of the chart comes from the code and from the installation's manifests.
chart: setup
	$(BIN)/python -m deploy.chart.generate

LOCK := pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
    --python-version 3.11 --group clone --no-emit-package gpuplane \
    $(PACKAGES:%=--no-emit-package gpuplane-%) $(PACKAGES:%=packages/%/pyproject.toml)

# One set of versions: what the demo needs is a part of what everything needs.
lock: setup
	$(BIN)/uv $(LOCK) --group dev --output-file requirements.lock
	$(BIN)/uv $(LOCK) --constraint requirements.lock --output-file requirements-demo.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
	    --python-version 3.11 --group cuda --output-file requirements-cuda.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
	    --python-version 3.11 --group cupy --output-file requirements-cupy.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
	    --python-version 3.9 --group pytorch --output-file requirements-pytorch.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
	    --python-version 3.11 --group browser --output-file requirements-browser.lock

# All that tests and tools need; the demo needs less.
setup:
	@$(PYTHON) tools/environment.py all

clean:
	rm -rf $(VENV) build dist site $(PACKAGES:%=packages/%/src/%/_native)
