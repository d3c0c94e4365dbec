"""The inverse cloze task: what is drawn, that it teaches retrieval, and what it refuses."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError, DataError
from rag.core.files import read_json
from rag.core.types import Passage
from rag.data.files.rows import write_json_lines
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import Epochs
from retrievers.examples.corpus import open_corpus
from retrievers.training.config import IctTrainConfig
from retrievers.training.ict import IctBatches, held_out_rows
from retrievers.training.validation import pool_rank
from tests.support.messages import refusal
from tests.support.training import falls, named
from tests.unit.retrievers.conftest import TINY, cipher_examples

_SMALL: dict[str, Any] = {
    **TINY,
    "passage_tokens": 24,
    "pooling": "mean",
    "normalize": True,
    "split": "none",
}


TEXTS = [
    f"Who wrote {a} in {b} rises. The river {b} in {a} text."
    for a, b in itertools.product("abcdef", "ghij")
]


def write_corpus(path: Path, texts: list[str]) -> Path:
    write_json_lines(path, [{"id": str(n), "text": text} for n, text in enumerate(texts)])
    return path


def drawn(store: Any, held_out: np.ndarray, **data: Any) -> IctBatches:
    rows = np.setdiff1d(np.arange(len(store)), held_out)
    how = {"keep_sentence": 0.1, "min_words": 4, **data}
    return IctBatches(store, rows, Epochs(len(rows), 8, epochs=3, seed=5), **how)


def test_a_batch_depends_on_seed_and_step_alone_and_leaves_out_what_is_held_out(
    tmp_path: Path,
) -> None:
    texts = [f"{text} No." for text in TEXTS]
    store = open_corpus([write_corpus(tmp_path / "c.jsonl", texts)], tmp_path / "data", "none")
    held_out = np.array([0, 3, 4, 23])
    batches, again = (drawn(store, held_out) for _ in range(2))
    seen: list[int] = []
    kept = 0
    for step in (5, 0, 4, 1, 2, 3):
        one, other = batches[step], again[step]
        assert (one.questions, one.passages) == (other.questions, other.passages)
        seen += np.setdiff1d(np.arange(24), held_out)[batches.epochs[step]].tolist()
        for question, passage in zip(one.questions, one.passages, strict=True):
            kept += question.question in passage.text
            assert question.question != "No."
    assert sorted(set(range(24)) - {0, 3, 4, 23}) == sorted(set(seen))
    assert 0 < kept < 0.3 * len(seen)
    every = drawn(store, held_out, keep_sentence=1.0)[0]
    assert {passage.text for passage in every.passages} <= set(texts)


def test_retrieval_of_real_questions_rises(tmp_path: Path, tiny_bert: Path) -> None:
    """No question is trained on: each passage names a code and what it stands for, in two
    sentences.
    """
    examples = cipher_examples(500, negatives=0)
    texts = [f"{e.question}. The {e.positives[0].text}." for e in examples[60:]]
    corpus = write_corpus(tmp_path / "corpus.jsonl", [text[0].upper() + text[1:] for text in texts])
    config = IctTrainConfig(
        out=tmp_path / "run",
        train_files=(corpus,),
        question_encoder=str(tiny_bert),
        epochs=24,
        learning_rate=3e-3,
        batch_size=64,
        chunk_size=16,
        keep_sentence=0.0,
        **{**_SMALL, "validation_fraction": 0},
    )
    finished = config.train_model()
    assert falls(config.out, 0.6, over=5)
    ranks = []
    for folder in (tiny_bert, finished):
        encoder = BiEncoder.load(folder, pooling="mean", normalize=True, precision="fp32")
        ranks.append(pool_rank(examples[:60], encoder.encode_queries, encoder.encode_passages))
    assert ranks[1] < 0.6 * ranks[0]
    assert "| passages | " in named(finished, "ict")


@pytest.mark.parametrize(
    ("passages", "share", "held_out"),
    [(1, 0.02, 0), (3, 0.02, 0), (9, 0.02, 2), (60, 0.02, 6), (5000, 0.02, 100), (60, 0, 0)],
)
def test_a_small_corpus_holds_out_enough_to_be_told_apart(
    passages: int, share: float, held_out: int
) -> None:
    config = SimpleNamespace(validation_fraction=share, validation_questions=1000)
    rows = held_out_rows(config, passages, seed=3)
    assert len(set(rows.tolist())) == held_out


def test_held_out_passages_are_scored_without_questions(tmp_path: Path, tiny_bert: Path) -> None:
    passages = [Passage(str(n), "title", text) for n, text in enumerate(TEXTS)]
    write_index(tmp_path / "index", passages, settings=BuildSettings(retriever="bm25"))
    config = IctTrainConfig(
        out=tmp_path / "run",
        train_files=(tmp_path / "index",),
        question_encoder=str(tiny_bert),
        epochs=1,
        batch_size=8,
        reset_layers=1,
        **{**_SMALL, "validation_fraction": 0.25},
    )
    config.train_model()
    figures = read_json(config.out / "figures.json")
    assert figures["step"] == 2
    assert figures["figures"]["nll"] > 0


def test_what_cannot_be_learned_from_is_refused(tmp_path: Path, tiny_bert: Path) -> None:
    def run(name: str, *sources: Path, **settings: Any) -> None:
        given = {**_SMALL, "train_files": sources, "question_encoder": str(tiny_bert), **settings}
        IctTrainConfig(out=tmp_path / name, **given).train_model()

    with refusal(DataError):
        run(
            "one",
            write_corpus(tmp_path / "one.jsonl", [f"The river {a} rises" for a in "abcdefghi"]),
        )
    with refusal(DataError):
        run("none", tmp_path / "nowhere")
    write_index(
        tmp_path / "index", [Passage("a", "", "text")], settings=BuildSettings(retriever="bm25")
    )
    with refusal(ConfigError):
        run("two", tmp_path / "index", tmp_path / "one.jsonl")
    with refusal(DataError):
        run("single", tmp_path / "index")
    texts = [f"The river {a} rises" for a in "abcdefghi"]
    texts[3] = texts[5] = texts[7] = "The river rises in title. The forest text in the black."
    few = write_corpus(tmp_path / "few.jsonl", texts)
    with refusal(DataError):
        run("few", few, batch_size=2, validation_fraction=0)
