"""What is recorded of the files that questions come from."""

from pathlib import Path

from rag.eval.source import QuestionSource


def test_source_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "nq-dev.jsonl"
    path.write_text("{}\n")
    source = QuestionSource.of_file(path)
    assert (source.name, source.split, len(source.sha256)) == (f"{tmp_path.name}/nq-dev", "dev", 64)
    (tmp_path / "squad").mkdir()
    path = path.rename(tmp_path / "squad" / "dev-v1.1-a.json.gz")
    assert QuestionSource.of_file(path).name == "squad/dev-v1.1-a"
