# make demo    set up and run the whole path on the sample corpus
# make test    set up what tests need and run them
# make test-avx2   the numerical tests as a processor without AVX-512 runs them
# make test-cluster   nodes and processes of a Ray cluster are killed: takes minutes, on a quiet machine
# make test-lowest   models and Python API with the lowest torch that is allowed, in an environment of its own
# make site    guides, results and reference of public names as a static site, in site/
# make check   what CI runs: ruff, mypy, import-linter, tests, test-avx2
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PORT   ?= 8765
DEMO   ?= demo-index

NUMERICAL := tests/unit/rag/runtime tests/unit/readers/extractive tests/unit/retrievers/encoders \
             tests/unit/retrievers/training/test_model.py tests/unit/rag/bench/test_encode.py \
             tests/parity/test_encoders.py tests/parity/test_reader_parity.py tests/parity/test_training_model.py

.PHONY: demo serve site test test-avx2 test-cluster test-lowest check lint types layers clean
export TOKENIZERS_PARALLELISM = true
export HF_HUB_OFFLINE ?= 1

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else None'
	@echo 'Installing torch, then the rest: minutes. On Linux the usual wheel of torch brings CUDA, gigabytes, also'
	@echo 'without a GPU; to avoid it, stop here, install a wheel for CPUs into $(VENV), and run the same command again.'
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/rag demo --out $(DEMO) --port $(PORT)

serve: $(VENV)/.installed
	$(BIN)/rag index sample --out $(DEMO)
	RAG_SERVE_EXAMPLE_QUESTIONS='In what city do the Blue Nile and the White Nile come together? | Who determined the structure of penicillin? | Whom did Yuri Gagarin marry?' \
	$(BIN)/rag serve --index $(DEMO) --port $(PORT)

# Two processes, with one thread each; the first that is done takes half of what the other still has.
test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-avx2: $(VENV)/.installed-dev
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(BIN)/python -m pytest $(NUMERICAL)

test-cluster: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m cluster tests/unit/rag/scale

test-lowest:
	test -x $(VENV)-lowest/bin/python || $(PYTHON) -m venv $(VENV)-lowest
	grep -v '^torch==' constraints.txt > $(VENV)-lowest/constraints.txt
	$(VENV)-lowest/bin/python -m pip install --quiet -c $(VENV)-lowest/constraints.txt torch==2.9.0 -e '.[dev]'
	$(VENV)-lowest/bin/python -m pytest tests/unit/rag/test_pipeline.py tests/unit/rag/test_pipeline_models.py \
	    tests/unit/rag/joint tests/unit/retrievers/encoders tests/unit/retrievers/training tests/parity/test_encoders.py

site: $(VENV)/.installed-dev
	$(BIN)/properdocs build -q -f .ci/site.yml

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

layers: $(VENV)/.installed-dev
	$(BIN)/lint-imports

check: lint types layers test test-avx2

clean:
	rm -rf $(DEMO) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
