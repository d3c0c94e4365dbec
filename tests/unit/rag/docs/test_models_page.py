"""Every row of the page Models, tried on a tiny folder of that model's layout."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    DPRReader,
    RagTokenForGeneration,
)

from rag.docs.pages import read_page
from retrievers.encoders.open import load_encoder
from tests.commands import run_command
from tests.conftest import TinyModels
from tests.parity.test_bin_files import ance, co_condenser, contriever, dpr_towers, dragon
from tests.parity.test_yes_no import with_words
from tests.published import (
    published_dpr,
    published_encoder,
    published_rag,
    published_seq2seq,
    published_t5_encoder,
)
from tests.support.files import change_json, write_json, write_modules
from tests.tiny_causal import causal_folder
from tests.unit.retrievers.encoders.test_head import two_dense
from tests.unit.retrievers.encoders.test_states import options_in
from tests.unit.retrievers.encoders.test_static import WORDS, as_model2vec, tokenizer

Maker = Callable[[Path], Path | str]
TINY = TinyModels()


def sentence_transformer(folder: Path, *kinds: str, pooling: str = "mean") -> Path:
    """A folder of sentence-transformers with these modules behind the pooling."""
    TINY.bert(folder)
    write_modules(folder, "Transformer", "Pooling", *kinds)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": pooling})
    return folder


def unit(pooling: str = "mean") -> Maker:
    return lambda folder: sentence_transformer(folder, "Normalize", pooling=pooling)


def dot(folder: Path) -> Path:
    return sentence_transformer(folder, pooling="cls")


def dense(folder: Path) -> Path:
    two_dense(folder, TINY)
    return folder


def of_t5(folder: Path) -> Path:
    published_t5_encoder(folder)
    write_modules(folder, "Transformer", "Pooling", "Normalize")
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    return folder


def dpr(folder: Path) -> str:
    return " + ".join(map(str, dpr_towers(folder, 0)))


def two_dragons(folder: Path) -> str:
    sides = ("dragon-plus-context-encoder", "dragon-plus-query-encoder")
    return " + ".join(str(dragon(folder.parent / side)) for side in sides)


def static(folder: Path) -> Path:
    import numpy as np

    vectors = np.ones((len(WORDS), 8), np.float32)
    made: Tokenizer = tokenizer()
    return as_model2vec(folder, vectors, made)


def late(folder: Path) -> Path:
    TINY.late_interaction(folder)
    return folder


def plain(**config: Any) -> Maker:
    """A folder of transformers with further fields in its config.json."""

    def make(folder: Path) -> Path:
        TINY.bert(folder)
        change_json(folder / "config.json", **config)
        return folder

    return make


def published(name: str, task: str = "Model") -> Maker:
    one = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    more = one if task.endswith("SequenceClassification") else {}
    return lambda folder: published_encoder(folder, name, task, **more)


def monot5(folder: Path) -> Path:
    published_seq2seq(folder, "t5-small")
    return with_words(folder, ["▁true", "▁false"], AutoModelForSeq2SeqLM)


def qwen3_reranker(folder: Path) -> Path:
    causal_folder(folder, positions=1024)
    return with_words(folder, ["yes", "no"], AutoModelForCausalLM)


def dpr_reader(folder: Path) -> Path:
    published_dpr(folder, DPRReader)
    return folder


def of_modules(*kinds: str) -> Maker:
    """A folder of sentence-transformers or PyLate that lists these modules."""

    def make(folder: Path) -> Path:
        TINY.bert(folder)
        write_modules(folder, *kinds)
        return folder

    return make


def adapter(folder: Path) -> Path:
    write_json(folder / "adapter_config.json", {"peft_type": "LORA"})
    return folder


def chat_cross_encoder(folder: Path) -> Path:
    published("bert-base-uncased", "ModelForSequenceClassification")(folder)
    write_json(folder / "sentence_bert_config.json", {"modality_config": {"message": {}}})
    return folder


def fid(folder: Path) -> Path:
    published_seq2seq(folder, "t5-small")
    change_json(folder / "config.json", architectures=["FiDT5"])
    return folder


MAKERS: dict[str, Maker] = {
    "sentence-transformers/all-MiniLM-L6-v2": unit(),
    "sentence-transformers/multi-qa-mpnet-base-dot-v1": dot,
    "google/embeddinggemma-300m": dense,
    "Qwen/Qwen3-Embedding-0.6B": unit("lasttoken"),
    "BAAI/bge-small-en-v1.5": unit("cls"),
    "intfloat/e5-base-v2": unit(),
    "nomic-ai/nomic-embed-text-v1.5": unit(),
    "sentence-transformers/gtr-t5-base": of_t5,
    "facebook/dpr-ctx_encoder-single-nq-base + facebook/dpr-question_encoder-single-nq-base": dpr,
    "facebook/dragon-plus-context-encoder + facebook/dragon-plus-query-encoder": two_dragons,
    "facebook/contriever-msmarco": contriever,
    "castorini/ance-msmarco-passage": ance,
    "castorini/dkrr-dpr-nq-retriever": published("bert-base-uncased"),
    "nq_retriever": plain(indexing_dimension=32, apply_question_mask=True, apply_passage_mask=True),
    "castorini/tct_colbert-v2-hnp-msmarco": published("bert-base-uncased"),
    "Luyu/co-condenser-marco": co_condenser,
    "minishlab/potion-base-8M": static,
    "a MultiVectorEncoder": late,
    "bert-base-uncased": published("bert-base-uncased"),
    "cross-encoder/ms-marco-MiniLM-L6-v2": published(
        "bert-base-uncased", "ModelForSequenceClassification"
    ),
    "castorini/monot5-base": monot5,
    "Qwen/Qwen3-Reranker-0.6B": qwen3_reranker,
    "ColBERT as above": late,
    "deepset/roberta-base-squad2": published("roberta-base", "ModelForQuestionAnswering"),
    "ModernBERT for question answering": published("ModernBERT-base", "ModelForQuestionAnswering"),
    "facebook/dpr-reader-single-nq-base": dpr_reader,
    "BART and T5 that were trained to answer": lambda folder: published_seq2seq(
        folder, "bart-large-cnn"
    ),
    "nq_reader_base": fid,
    "facebook/rag-token-nq": lambda folder: published_rag(
        folder, RagTokenForGeneration, "bart-base"
    ),
    "Qwen/Qwen2.5-1.5B-Instruct": causal_folder,
    "colbert-ir/colbertv2.0": plain(architectures=["HF_ColBERT"]),
    "lightonai/GTE-ModernColBERT-v1": of_modules("Transformer", "Dense"),
    "adapters": adapter,
    "SPLADE": of_modules("MLMTransformer", "SpladePooling"),
    "jinaai/jina-embeddings-v3": plain(model_type="jina", auto_map={"AutoModel": "a/b--c.D"}),
    "cross-encoders that read a chat template": chat_cross_encoder,
    "google/realm-orqa-nq-openqa": plain(model_type="realm"),
    "models of images or sound": plain(vision_config={}),
}
"""What a row begins with → writes a folder of that layout, and returns what an option is given."""


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Of each row: its heading, what it begins with, the options, and what is said."""
    for section in read_page("models").split("\n## ")[1:]:
        heading = section.partition("\n")[0]
        table = [line for line in section.splitlines() if line.startswith("| ")]
        for line in table[1:]:
            model, options, said = (cell.strip() for cell in line.strip("|").split("|"))
            name = model.replace("`", "")
            yield heading, re.split(r"[,:;]| as published| of (?!images)|$", name)[0], options, said


ROWS = list(rows())


def test_the_rows_of_the_page_are_those_that_are_tried() -> None:
    assert [name for _, name, _, _ in ROWS] == list(MAKERS)


@pytest.mark.parametrize(("heading", "name", "options", "said"), ROWS, ids=[r[1] for r in ROWS])
def test_a_model_opens_as_the_page_says(
    heading: str, name: str, options: str, said: str, tmp_path: Path
) -> None:
    made = str(MAKERS[name](tmp_path / Path(name).name))
    described = run_command("doctor", made)
    if heading == "Refused":
        assert options in described.out
        return
    option = {"Encoders": "--encoder", "Re-rankers": "--rerank", "Readers": "--reader"}[heading]
    assert described.exit_code == 0, described.err
    line = next(line for line in described.out.splitlines() if line.startswith(option))
    if not options or "tct" in name:
        assert said in line
    if not options:
        return
    identity = load_encoder(made, precision="fp32", **options_in(options)).identity.describe()
    assert said in identity
    if "tct" in name:
        other = shutil.copytree(made, tmp_path / "renamed")
        again = load_encoder(other, precision="fp32", **options_in(options))
        assert again.identity.describe() == identity
    for prefix in re.findall(r"'([^']+)'", options):
        assert repr(prefix) in identity
