"""Wrong training files and impossible batches are refused before any model is opened."""

from pathlib import Path
from typing import Any

import pytest

import rag
from rag.core.errors import ConfigError, DataError, RagError
from rag.data.files.rows import write_json_lines
from tests.support.messages import refusal

PASSAGE = {"title": "Danube", "text": "The Danube rises in the Black Forest."}
WRONG = {"title": "Rhine", "text": "Another river."}
LEARNT = {"answers": ["x"], "positive_ctxs": [PASSAGE], "hard_negative_ctxs": [WRONG]}
FILES: dict[str, list[dict[str, Any]]] = {
    "corpus": [{"id": str(n), "title": "T", "text": f"Passage {n}."} for n in range(40)],
    "gold": [{"question": f"q{n}?", "gold_passage_ids": [f"p{n}"]} for n in range(40)],
    "examples": [{"question": f"q{n}?", **LEARNT} for n in range(40)],
}


REFUSED = {
    "corpus": ("dpr", "corpus", {}, DataError),
    "gold passages for dpr": ("dpr", "gold", {}, DataError),
    "gold passages for colbert": ("colbert", "gold", {}, DataError),
    "gold passages for a re-ranker": ("reranker", "gold", {}, DataError),
    "no targets": ("distill", "examples", {}, DataError),
    "batch of dpr": ("dpr", "examples", {"batch_size": 100_000}, ConfigError),
    "batch of colbert": ("colbert", "examples", {"batch_size": 900}, ConfigError),
    "batch of a re-ranker": ("reranker", "examples", {"batch_size": 900}, ConfigError),
}


@pytest.mark.parametrize(("recipe", "file", "settings", "error"), REFUSED.values(), ids=REFUSED)
def test_refused_before_a_model_is_opened(
    tmp_path: Path, recipe: str, file: str, settings: dict[str, Any], error: type[RagError]
) -> None:
    path = tmp_path / f"{file}.jsonl"
    write_json_lines(path, FILES[file])
    missing = tmp_path / "no-encoder"
    if recipe == "reranker":  # whose base is looked at before
        missing = Path("sentence-transformers/no-such-encoder")
    with refusal(error):
        rag.train(
            recipe,
            tmp_path / "run",
            train_files=[str(path)],
            question_encoder=str(missing),
            **settings,
        )
    assert not (tmp_path / "run" / "config.json").exists()  # a corrected command may go there


@pytest.mark.parametrize("name", ["data", "refresh"])
def test_files_that_are_no_run_s_stay(tmp_path: Path, name: str) -> None:
    """A folder of the user is not taken for a run's, which a refused run removes."""
    kept = tmp_path / name / "train.jsonl"
    write_json_lines(kept, FILES["gold"])
    with refusal(ConfigError):
        rag.train("dpr", tmp_path, train_files=[str(kept)])
    assert kept.is_file()
