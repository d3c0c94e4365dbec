# make demo    set up and run the whole path on the sample corpus
# make test    set up what tests need and run them
# make test-avx2   the numerical tests as a processor without AVX-512 runs them
# make check   what CI runs: ruff, mypy, import-linter, tests, test-avx2
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PORT   ?= 8765
DEMO   ?= demo-index

NUMERICAL := tests/unit/rag/runtime tests/unit/readers/extractive tests/unit/retrievers/encoders \
             tests/unit/retrievers/training/test_model.py tests/unit/rag/bench/test_encode.py \
             tests/parity/test_encoders.py tests/parity/test_reader_parity.py tests/parity/test_training_model.py

.PHONY: demo serve test test-avx2 check lint types layers clean
export TOKENIZERS_PARALLELISM = true
export HF_HUB_OFFLINE ?= 1

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/rag demo --out $(DEMO) --port $(PORT)

serve: $(VENV)/.installed
	$(BIN)/rag index sample --out $(DEMO) --retriever hybrid
	RAG_SERVE_EXAMPLE_QUESTIONS='In what city do the Blue Nile and the White Nile come together? | Who determined the structure of penicillin? | Whom did Yuri Gagarin marry?' \
	$(BIN)/rag serve --index $(DEMO) --port $(PORT)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

test-avx2: $(VENV)/.installed-dev
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(BIN)/python -m pytest $(NUMERICAL)

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
