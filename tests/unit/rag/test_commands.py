"""The commands as functions do what the commands do."""

from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import rag
from indexers.index import Index
from indexers.lucene import build_bm25
from rag.core.errors import ConfigError, DataError
from rag.data.corpus import ReadReport
from rag.data.files.rows import write_json_lines
from tests.commands import exit_code, run_command, run_successfully
from tests.support.messages import refusal

DOCUMENTS = [
    {
        "id": "d1",
        "title": "Danube",
        "text": "The Danube rises in the Black Forest. It ends in the Black Sea.",
    },
    {"id": "d2", "title": "Rhine", "text": "The Rhine ends in the North Sea."},
    {"id": "d3", "title": "Elbe", "text": "The Elbe flows through Dresden and Hamburg."},
]
QUESTION = {
    "question": "Where does the Rhine end?",
    "answers": ["North Sea"],
    "gold_passage_ids": ["d2-0"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_json_lines(Path("corpus.jsonl"), DOCUMENTS)
    write_json_lines(Path("questions.jsonl"), [QUESTION])
    return tmp_path


def _passages(place: str) -> Any:
    with Index.open(place) as index:
        return index.manifest.stage("passages").output


@pytest.mark.usefixtures("folder")
def test_index_mine_and_retrieve_write_what_the_commands_write() -> None:
    report = ReadReport()
    assert rag.index("corpus.jsonl", "one", retriever="bm25", report=report) == Path("one")
    assert (report.total, report.bad) == (3, 0)
    run_successfully("index", "corpus.jsonl", "--out", "two", "--retriever", "bm25")
    assert _passages("one") == _passages("two")
    rag.index("corpus.jsonl", "two", retriever="bm25")  # the same build: else it would be refused
    rag.mine("one", "questions.jsonl", "one.json", per_question=1, weak_positives=False)
    arguments = ("--questions", "questions.jsonl", "--per-question", 1, "--no-weak-positives")
    run_successfully("mine", "--index", "one", *arguments, "--out", "two.json")
    assert Path("one.json").read_bytes() == Path("two.json").read_bytes()
    assert rag.retrieve("one", "questions.jsonl", "one.run", top_k=2) == 1
    more = ("--questions", "questions.jsonl", "--top-k", 2)
    run_successfully("retrieve", "--index", "one", *more, "--out", "two.run")
    assert Path("one.run").read_text() == Path("two.run").read_text()
    assert Path("one.run").read_text().startswith("q")


@pytest.mark.usefixtures("folder")
def test_what_an_encoder_is_told_stands_in_the_index(tiny_bert: Path) -> None:
    """Asking needs none of it, and another setting is another encoder."""
    told: dict[str, Any] = {
        "pooling": "lasttoken",
        "normalize": True,
        "query_prefix": "query: ",
        "passage_prefix": "passage: ",
        "max_length": 40,
        "layout": "{text} {title}",
    }
    place = rag.index("corpus.jsonl", "one", retriever="dense", encoder=tiny_bert, **told)
    named = [f"--{name.replace('_', '-')}={value}" for name, value in told.items()]
    named[1] = "--normalize"
    command = ("index", "corpus.jsonl", "--retriever", "dense", "--encoder", tiny_bert, *named)
    run_successfully(*command, "--out", "two")
    for built in ("one", "two"):
        with Index.open(built) as index:
            identity = index.encoder_identity
            assert {name: getattr(identity, name) for name in told} == told
            assert identity.similarity == "cosine"
    retrieve = ("retrieve", "--index", place, "-q", "questions.jsonl", "--out", "a.run")
    assert "does not state" not in run_successfully(*retrieve)
    other = ["--no-normalize" if word == "--normalize" else word for word in command]
    refused = run_command(*other, "--out", "one")
    assert refused.exit_code == 4
    assert "normalize" in refused.err
    update = ("index", "corpus.jsonl", "--update", "one")
    assert exit_code(*update, "--query-prefix", "q: ") == 2
    run_successfully(*update)
    with refusal(ConfigError):
        rag.index("corpus.jsonl", "three", encoder=object(), pooling="cls")


def test_settings_of_jobs_are_checked_before_work(folder: Path) -> None:
    with refusal(ConfigError):
        rag.index("corpus.jsonl", "new", retreiver="bm25")
    for limit in (0, "5"):
        with refusal(ConfigError):
            rag.retrieve("one", "questions.jsonl", "one.run", limit=limit)  # type: ignore[arg-type]
    with refusal(ConfigError):
        rag.mine("one", "questions.jsonl", "out.json", per_queston=3)
    with refusal(ConfigError):
        rag.train_rounds("distil", "one", "questions.jsonl", "rounds")  # type: ignore[arg-type]
    for setting, value in (("words", "five"), ("split", "paragraphs"), ("metadata", 5)):
        with refusal(ConfigError):
            rag.index("corpus.jsonl", "new", retriever="bm25", **{setting: value})
    with refusal(DataError, "index"):
        rag.train_rounds("distill", "one", "questions.jsonl", "rounds")
    assert not (folder / "new").exists()


def test_a_build_that_goes_on_names_again_what_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.md").write_text("# Danube\n\nIt is long.")
    (corpus / "broken.docx").write_bytes(b"PK\x03\x04 no archive")
    (corpus / ".hidden.md").write_text("not for everybody")
    said = []
    for build in (Mock(side_effect=KeyboardInterrupt), build_bm25, build_bm25):
        monkeypatch.setattr("indexers.index_writer.build_bm25", build)
        caplog.clear()
        with suppress(KeyboardInterrupt):
            rag.index(corpus, tmp_path / "i", retriever="bm25")
        said.append([line for line in caplog.messages if "broken" in line or "hidden" in line])
    assert len(said[0]) == 2
    assert said == [said[0], said[0], []]
