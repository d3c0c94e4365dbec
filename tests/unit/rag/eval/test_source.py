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


def test_a_beir_folder_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text('{"_id": "b1", "text": "Q?"}\n')
    (tmp_path / "qrels" / "test.tsv").write_text("b1\td1\t1\n")
    first = QuestionSource.of_file(tmp_path)
    assert first.split == "test"
    (tmp_path / "qrels" / "test.tsv").write_text("b1\td2\t1\n")
    assert QuestionSource.of_file(tmp_path).sha256 != first.sha256
