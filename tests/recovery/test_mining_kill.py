"""`rag mine` killed with SIGKILL at any moment: no half result, and the same bytes when it is run
again.
"""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.errors import MismatchedArtifactError
from rag.core.types import Passage
from rag.data.files.rows import write_json_lines
from retrievers.negatives import blocks
from retrievers.negatives import mine as module
from tests.support.messages import refusal
from tests.worlds import killed_at

SETTINGS = {"per_question": 4, "ranks": "12"}


def _mine(index: Path, questions: Path, out: Path) -> None:
    with mock.patch.object(module, "BLOCK_QUESTIONS", 5):
        module.mine(index, questions, out, **SETTINGS)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(module.Miner, "mine"), (blocks, "atomic_write_json")],
    ids=["between blocks", "before a block counts"],
)
def test_killed_runs_end_in_equal_bytes(tmp_path: Path, owner: Any, name: str) -> None:
    index = tmp_path / "index"
    questions = tmp_path / "questions.jsonl"
    passages = [
        Passage(f"p{n}", f"Title {n % 7}", f"word{n} river {n % 5} town {n}") for n in range(60)
    ]
    write_index(index, passages, settings=BuildSettings(retriever="bm25"))
    rows = [
        {
            "question": f"river {n % 5} word{n}",
            "answers": [f"town {n}"],
            "gold_passage_ids": [f"p{n}"],
        }
        for n in range(60)
    ]
    write_json_lines(questions, rows)
    _mine(index, questions, tmp_path / "whole.json")

    out = tmp_path / "out.json"
    work = tmp_path / "out.json.mining"
    killed_at(owner, name, 3, _mine, index, questions, out)
    assert not out.exists()
    assert list(work.glob("block-*.counts.json"))

    with refusal(MismatchedArtifactError):
        module.mine(index, questions, out)
    _mine(index, questions, out)
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert not work.exists()
    ours, theirs = (
        json.loads(Path(f"{path}.report.json").read_text())
        for path in (out, tmp_path / "whole.json")
    )
    assert ours == theirs
