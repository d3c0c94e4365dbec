"""`train_mdr` learns both hops; its losses are those of a count by hand; a resumed queue goes on
the same.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.index_writer import write_index
from indexers.passage_writer import writing_passages
from indexers.passages import PassageStore
from indexers.settings import BuildSettings
from rag.core.files import read_json
from rag.core.types import Passage, Query
from rag.data.examples import Example
from rag.training.distributed import World
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.tokenization import TextTokenizer
from retrievers.examples.batches import IGNORED
from retrievers.examples.data import ExampleTable
from retrievers.examples.hops import HopBatches, HopEpochs
from retrievers.open import open_retriever
from retrievers.training.bi_encoder import BiEncoderModel, load_model
from retrievers.training.config import MdrTrainConfig
from retrievers.training.mdr import index_step
from retrievers.training.step import contrastive_step
from tests.support.training import falls, figures_of, records
from tests.token_towers import bi_encoder
from tests.unit.retrievers.conftest import TINY, Flat, cipher_examples

_SMALL: dict[str, Any] = {
    **TINY,
    "query_tokens": 40,
    "log_every_steps": 4,
    "validation_fraction": 0.15,
}
_SHAPE: dict[str, Any] = {"passage_tokens": 24, "pooling": "mean", "normalize": True}


@pytest.fixture(scope="module")
def bridges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions name the letters of a first passage's title; its text names those of the second."""
    codes = [example.question.removeprefix("who wrote ") for example in cipher_examples(160)]
    path = tmp_path_factory.mktemp("bridges") / "train.json"
    records = []
    for number, (one, two) in enumerate(zip(codes[::2], codes[1::2], strict=True)):
        first = [f"river {one}", [f"the {two}"]]
        second, other = ([f"END {n}", [f"title {codes[2 * n + 1]}"]] for n in (number, number - 1))
        records.append(
            {
                "_id": str(number),
                "question": f"who wrote {one}",
                "answer": "x",
                "supporting_facts": [[second[0], 0], [first[0], 0]],
                "context": [other, second, first],
            }
        )
    path.write_text(json.dumps(records))
    return path


def mdr(out: Path, train: Path, encoder: Path | None, **settings: Any) -> MdrTrainConfig:
    given = {"out": out, "train_files": (train,), "batch_size": 16, **_SMALL, **_SHAPE, **settings}
    return MdrTrainConfig(**given, question_encoder=None if encoder is None else str(encoder))


def passages_of(train: Path) -> list[Passage]:
    return [
        Passage(f"{record['_id']}-{place}", title, "".join(sentences))
        for record in read_json(train)
        for place, (title, sentences) in enumerate(record["context"])
    ]


def right_paths(directory: Path, train: Path) -> float:
    """Share of the questions whose passages are one of the best ten paths."""
    records = read_json(train)
    with Index.open(directory) as index:
        searcher: Any = open_retriever(index, "multihop:beam=10")
        actual = searcher.search_paths([record["question"] for record in records], 10)[1]
        expected = [
            {index.passages.row_of(f"{record['_id']}-{n}") for n in (1, 2)} for record in records
        ]
    return sum(
        any({hit.row for hit in path.hits} == rows for path in paths)
        for paths, rows in zip(actual, expected, strict=True)
    ) / len(records)


def test_both_hops_are_learned_in_the_batch_and_then_against_an_index(
    tmp_path: Path, tiny_bert: Path, bridges: Path
) -> None:
    def index_with(encoder: Path, name: str) -> Path:
        loaded = BiEncoder.load(encoder, pooling="mean", normalize=True, precision="fp32")
        return write_index(
            tmp_path / name, passages_of(bridges), encoder=loaded, settings=BuildSettings(probes=8)
        ).directory

    one = mdr(tmp_path / "one", bridges, tiny_bert, epochs=12, learning_rate=3e-3)
    shares = [right_paths(index_with(tiny_bert, "raw"), bridges)]
    index = index_with(one.train_model(), "index")
    shares.append(right_paths(index, bridges))
    two = MdrTrainConfig(
        out=tmp_path / "two",
        train_files=(bridges,),
        index=index,
        negatives="index",
        shared=False,
        depth=20,
        epochs=8,
        learning_rate=2e-3,
        batch_size=16,
        **_SMALL,
    )
    two.train_model()
    shares.append(
        right_paths(two.out / "index", bridges)
    )  # for the trained encoder, nothing encoded anew
    for config in (one, two):
        assert falls(config.out, 0.9)
        assert {"nll", "average_rank"} <= figures_of(config.out).keys()
    assert shares[0] + 0.1 < shares[1]
    assert shares[1] + 0.05 < shares[2]

    three = two.replaced(out=tmp_path / "three", frozen="passage", negatives="batch")
    three.train_model()
    losses = [record["loss"] for record in records(three.out)]
    assert losses[-1] < losses[1]
    assert (
        right_paths(three.out / "index", bridges) > shares[1]
    )  # the vectors are the index's, as before


def test_the_finished_encoder_reads_as_much_as_was_trained(
    tmp_path: Path, tiny_bert: Path, bridges: Path
) -> None:
    passage = Passage("", "river", "the river " * 30)
    query = Query("who wrote it", (passage,))
    short = mdr(tmp_path / "run", bridges, tiny_bert, query_tokens=16)  # passages have 24
    encoder = BiEncoder.load(
        tiny_bert, pooling="mean", normalize=True, precision="fp32", max_length=20
    )
    index = write_index(
        tmp_path / "index", passages_of(bridges), encoder=encoder, settings=BuildSettings(probes=8)
    )
    over_index = mdr(
        tmp_path / "run",
        bridges,
        None,
        index=index.directory,
        negatives="index",
        shared=False,
    )
    trained = load_model(short, "cpu")
    finished = TextTokenizer(trained.encoder_settings)
    expected = finished.passages([passage.title], [passage.text])
    assert trained.model.tokenizer.passages([passage]) == expected
    trained = load_model(over_index, "cpu")
    finished = TextTokenizer(trained.encoder_settings)
    assert trained.model.tokenizer.queries([query]) == finished.queries([query])


PASSAGES = [Passage(title, title, f"text {title} river") for title in "abc"]


def world_of(tiny_bert: Path) -> tuple[BiEncoderModel, ExampleTable]:
    """Of two questions one has two hops."""
    model = bi_encoder(
        tiny_bert, pooling="mean", question_tokens=16, passage_tokens=24, dropout=0.0
    )
    model.query_tokens = 40
    a, b, c = PASSAGES
    second = Example.labelled("", "", (), (b,), (c,)).candidates
    examples = [
        Example.labelled("q#0.0", "who", (), (a, b), (c,)),
        Example("q#0.1", "who", (), second, (a,)),
        Example.labelled("r#0.0", "where is it", (), (c,)),
    ]
    return model, ExampleTable.of(examples)


@pytest.mark.parametrize("masks", [True, False])
def test_candidates_of_a_hop_are_all_passages_but_the_later_ones(
    tiny_bert: Path, masks: bool
) -> None:
    """The first passage is a negative of the second hop."""
    left = {"q#0.0": "ac", "q#0.1": "abc", "r#0.0": "abc"}
    model, data = world_of(tiny_bert)
    ids = [example.id for example in data]
    epochs = HopEpochs(ids, 2, seed=1)
    batch = HopBatches(data, epochs, hard_negatives=0, mask_false_negatives=masks)[0]
    row = {ids[e]: n for n, e in enumerate(epochs[0].tolist())}
    names = [passage.id for passage in batch.passages]
    counted = (batch.labels != IGNORED).numpy()
    shown = {name: "".join(sorted(np.array(names)[counted[n]])) for name, n in row.items()}
    assert shown == left
    targets = {name: names[batch.labels[n].argmax()] for name, n in row.items()}
    assert targets == {"q#0.0": "a", "q#0.1": "b", "r#0.0": "c"}
    queries = data.queries(np.arange(len(data)))  # in the order of `left`
    scores = model.encode_queries(queries) @ model.encode_passages(PASSAGES).T
    expected = 0.0
    for n, (name, kept) in enumerate(left.items()):
        listed = scores[n, ["abc".index(letter) for letter in kept]]
        expected += float(torch.logsumexp(listed, 0) - scores[n, "abc".index(targets[name])]) / 3
    actual = contrastive_step(model, batch, World(), None)
    assert float(actual.value) == pytest.approx(expected, rel=1e-4)


def test_what_an_index_finds_is_what_a_hop_is_told_from(tiny_bert: Path, tmp_path: Path) -> None:
    """The passages of later hops, and copies of right ones, are no negatives."""
    model, data = world_of(tiny_bert)
    with writing_passages(tmp_path / "passages") as writer:
        writer.add_many(PASSAGES)
        writer.add_many(Passage(f"other {n}", "", f"text {n}") for n in range(4))
        writer.add_many(Passage(f"copy {p.id}", "Copy", f" {p.text} ") for p in PASSAGES[:2])
    corpus = PassageStore(tmp_path / "passages")
    vectors = np.random.default_rng(2).standard_normal((9, model.dim)).astype(np.float32)

    class Bank(Flat):
        def rows(self, rows: Any) -> Any:
            return vectors[rows]

    dense = SimpleNamespace(vectors=Bank(vectors), embeddings=Bank(vectors))
    index: Any = SimpleNamespace(require_dense=lambda: dense, passages=corpus)
    examples = np.arange(len(data))
    texts = CorpusTexts(corpus)
    value = index_step(model, data, examples, index=index, texts=texts, depth=8).value
    queries = model.encode_queries(data.queries(examples))
    # Of every hop: its passage, those of later hops, and copies of either.
    golds = [(0, {1, 7, 8}), (1, {8}), (2, set())]
    expected = torch.zeros(())
    for query, (target, later) in zip(queries, golds, strict=True):
        scores = query @ torch.from_numpy(vectors).T
        actual = [
            row
            for row in scores.argsort(descending=True)[:8].tolist()
            if row not in later | {target}
        ]
        expected = expected - scores[target] + torch.logsumexp(scores[[target, *actual]], 0)
    assert float(value) == pytest.approx(float(expected / 3), rel=1e-5)
    queries.sum().backward()  # the bank gets no gradient, the question tower does
