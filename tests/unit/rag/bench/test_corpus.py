import json
from pathlib import Path

import pytest

from rag.bench.corpus import run_corpus_benchmark
from rag.core.errors import ConfigError, DataError


def write(path: Path, records: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture
def articles(tmp_path: Path) -> Path:
    texts = [
        "\n".join(f"Sentence {number} of article {name} has {'a ' * number}word." for number in range(9))
        for name in "abcd"
    ]
    return write(
        tmp_path / "articles.jsonl",
        [{"id": name, "title": f"Title {name}", "text": text} for name, text in zip("abcd", texts)],
    )


def test_a_corpus_is_made_of_sentences_and_real_passages(articles: Path, tmp_path: Path) -> None:
    known = [{"id": f"r{n}", "title": "Real", "text": f"Real passage {n}."} for n in range(7)]
    real = write(tmp_path / "real.jsonl", known)
    made = []
    for name in ("one", "two"):
        out = tmp_path / f"{name}.jsonl"
        report = run_corpus_benchmark([articles], out, [real], passages=5000, seed=3)
        made.append(out.read_bytes())
    assert made[0] == made[1]
    rows = [json.loads(line) for line in made[0].decode().splitlines()]
    assert report.figures["passages"] == len(rows) == len({row["id"] for row in rows}) == 5000
    assert [row for row in rows if row["id"].startswith("r")] == known
    places = [number for number, row in enumerate(rows) if row["id"].startswith("r")]
    assert places != list(range(7))
    sentences = articles.read_text(encoding="utf-8")
    for row in rows:
        if row["id"].startswith("made-"):
            assert len(row["text"].split()) == 100
            parts = row["text"].split(" Sentence ")
            assert len({part.split("article ")[1][0] for part in parts if "article " in part}) <= 2
            assert parts[0].removeprefix("Sentence ") in sentences
            assert row["title"].endswith(parts[0].split("article ")[1][0])


def test_another_seed_gives_another_corpus(articles: Path, tmp_path: Path) -> None:
    digests = {
        run_corpus_benchmark([articles], tmp_path / "c.jsonl", passages=50, seed=seed).figures["sha256"]
        for seed in range(3)
    }
    assert len(digests) == 3


def test_what_cannot_be_made_is_refused(articles: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="passages is 3 and real has 4"):
        run_corpus_benchmark([articles], tmp_path / "c.jsonl", [articles], passages=3)
    short = write(tmp_path / "short.jsonl", [{"id": "s", "title": "", "text": "Only this one sentence."}])
    with pytest.raises(DataError, match=r"short.jsonl: no article has"):
        run_corpus_benchmark([short], tmp_path / "c.jsonl", passages=3)
    assert not (tmp_path / "c.jsonl").exists()
