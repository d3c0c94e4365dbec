"""`rag mine --hops`: each hop's negatives are what a search with its query finds, and MDR trains on them."""

import json
from pathlib import Path

import numpy as np
import pytest

from indexers.build import build_index
from indexers.index import Index
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage, Query
from rag.data.examples import Example, read_examples
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.hops import mined_hops, order_of
from retrievers.negatives.mine import mine
from retrievers.negatives.settings import MiningSettings
from retrievers.training.mdr import MdrTrainConfig, split_hops, train_mdr
from tests.commands import exit_code

RIVERS = ("Danube", "Rhine", "Elbe", "Oder", "Main", "Neckar", "Isar", "Inn", "Spree", "Havel")
TOWNS = ("Ulm", "Bonn", "Riesa", "Brieg", "Fulda", "Esslingen", "Tölz", "Wasserburg", "Köpenick", "Werder")


@pytest.fixture(scope="module")
def encoder(tiny_bert: Path) -> BiEncoder:
    return BiEncoder.load(tiny_bert, precision="fp32")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, encoder: BiEncoder) -> Path:
    """Of each river the passage that names its town, and of each town one."""
    rivers = [Passage(f"r{n}", name, f"The {name} flows past {TOWNS[n]}.") for n, name in enumerate(RIVERS)]
    towns = [Passage(f"t{n}", name, f"{name} has {n} bridges and a tower.") for n, name in enumerate(TOWNS)]
    out = tmp_path_factory.mktemp("hops") / "index"
    build_index(rivers + towns, out, encoder=encoder, settings=BuildSettings(retriever="hybrid"))
    return out


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bridge question of each river, its passages by id; one of a passage that nobody has."""
    rows = [
        {"id": f"q{n}", "question": f"How many bridges has the town on the {name}?",
         "answers": [f"{n} bridges"], "gold_passage_ids": [f"r{n}", f"t{n}"]}
        for n, name in enumerate(RIVERS)
    ]  # fmt: skip
    rows.append({"id": "gone", "question": "The Seine?", "answers": ["x"], "gold_passage_ids": ["r0", "t99"]})
    path = tmp_path_factory.mktemp("asked") / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def ids(example: Example) -> list[str]:
    return [negative.passage.id for negative in example.negatives]


def test_each_hop_is_searched_with_its_own_query(
    corpus: Path, questions: Path, tmp_path: Path, encoder: BiEncoder
) -> None:
    settings = MiningSettings(hops=2, source="dense", per_question=4, last_rank=20)
    report = mine(corpus, questions, tmp_path / "out.json", settings)
    assert (report.counts["questions"], report.counts["examples"]) == (20, 20)
    assert "20 hops" in report.lines()[0]
    found = list(read_examples(tmp_path / "out.json"))
    with Index.open(corpus) as index:
        assert index.embeddings is not None
        vectors = index.embeddings.rows(np.arange(len(index.passages)))
        names = [passage.id for passage in index.passages]
        for example in found:
            number, hop = int(example.id[1]), order_of(example.id)[2]
            path = [f"r{number}", f"t{number}"]
            assert [p.id for p in example.context] == path[:hop]
            assert [p.id for p in example.positives] == path[hop:]
            query = encoder.encode_queries([Query(example.question, example.context)])[0]
            ranking = [names[row] for row in np.argsort(-(vectors @ query), kind="stable")]
            assert ids(example) == [name for name in ranking if name not in path][:4]
    one, two = found[:2]
    assert ids(one) != ids(two)


def test_bm25_looks_for_the_words_of_the_path_too(corpus: Path, questions: Path, tmp_path: Path) -> None:
    mine(corpus, questions, tmp_path / "out.json", MiningSettings(hops=2, per_question=20, last_rank=20))
    first, second = list(read_examples(tmp_path / "out.json"))[:2]
    assert {n.source for n in first.negatives} == {"bm25"}
    assert set(ids(second)) != set(ids(first))


def test_mdr_trains_on_what_was_mined(
    corpus: Path, questions: Path, tmp_path: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mined.json"
    assert (
        exit_code(
            "mine", "-i", str(corpus), "-q", str(questions), "-o", str(out), "--hops", "2", "--source", "both"
        )
        == 0
    )
    assert f"rag train mdr --train {out}" in capsys.readouterr().out
    given = {
        "train_files": (out, questions), "index": corpus, "question_encoder": str(tiny_bert),
        "precision": "fp32", "question_tokens": 16, "passage_tokens": 24, "query_tokens": 40,
        "pooling": "mean", "threads": 1, "batch_size": 4, "max_steps": 3, "validation_fraction": 0.0,
        "hard_negatives": 2, "log_every_steps": 1,
    }  # fmt: skip
    config = MdrTrainConfig(**given, out=tmp_path / "run")
    train_mdr(config)
    examples = {e.id: e for e in split_hops(config, tmp_path / "again", Index.open(corpus)).training()}
    assert {name.split("#")[0] for name in examples} == {f"{f}:q{n}" for f in range(2) for n in range(10)}
    mined = {example.id: example for example in read_examples(out)}
    assert examples["0:q3#0.1"].negatives == mined["q3#0.1"].negatives
    assert not examples["1:q3#0.1"].negatives  # the set itself has none
    with pytest.raises(ConfigError, match="holds mined hops"):
        train_mdr(MdrTrainConfig(**{**given, "train_questions": 5}, out=tmp_path / "drawn"))


def test_other_files_are_not_taken_for_mined_hops(corpus: Path, questions: Path, tmp_path: Path) -> None:
    assert mined_hops(questions) is None
    single = tmp_path / "single.json"
    mine(corpus, questions, single, MiningSettings())
    assert mined_hops(single) is None
    path = tmp_path / "hops.json"
    mine(corpus, questions, path, MiningSettings(hops=2))
    with pytest.raises(DataError, match="“Danube”, a passage of a question, is not in the index"):
        list(mined_hops(path, find=lambda _: None) or ())
