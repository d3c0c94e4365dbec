"""Commands refuse a place where their result cannot be written before they do anything."""

import json
from pathlib import Path

import pytest

import rag
from tests.commands import exit_code


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("world")
    rows = [{"id": str(k), "text": f"Place {k} lies in land {k % 3}."} for k in range(20)]
    (place / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = [{"question": f"Where does place {k} lie?", "answers": [f"land {k % 3}"]} for k in range(12)]
    (place / "questions.jsonl").write_text("\n".join(map(json.dumps, asked)))
    rag.index(place / "corpus.jsonl", place / "index", retriever="bm25", split="none")
    (place / "file").write_text("kept")
    (place / "folder.json").mkdir()
    return place


def _no_work(*_: object, **__: object) -> None:
    raise AssertionError("this is work")


@pytest.mark.parametrize(
    ("command", "out"),
    [
        (("tune", "confidence"), "file"),
        (("mine", "--source", "bm25"), "folder.json"),
        (("retrieve",), "file/below.json"),
    ],
)
def test_a_result_that_could_not_be_written_is_refused_before_the_search(
    command: tuple[str, ...], out: str, world: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("rag.pipeline.Pipeline.retrieve_paths", _no_work)
    given = (*command, "--index", world / "index", "--questions", world / "questions.jsonl")
    assert exit_code(*given, "--out", world / out) == 2
    assert ("is a folder, expected a file" if "folder" in out else "is a file") in capsys.readouterr().err
    assert (world / "file").read_text() == "kept"
    assert not list(world.glob("*.mining"))
