"""Multi-hop search against a brute-force count of all paths over a tiny corpus."""

import numpy as np
import pytest

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.protocols import EncoderIdentity
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError
from rag.core.types import Hit, Passage, Query
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.first_stage import DenseRetriever
from retrievers.hybrid import Fusion
from retrievers.multihop import MultiHopRetriever
from retrievers.open import open_retriever
from retrievers.protocols import Retriever
from tests.pipeline_parts import MadeRetriever, Store
from tests.support.messages import refusal
from tests.unit.retrievers.conftest import Flat

N, DIM = 7, 5
PASSAGES = [Passage(f"p{n}", f"title {n}", f"text {n}") for n in range(N)]
STORE = Store(PASSAGES)
VECTORS = np.random.default_rng(3).standard_normal((N, DIM)).astype(np.float32)


class Encoder:
    """A query's vector depends on everything that was put into it, and on the order."""

    identity = EncoderIdentity("toy", "ab", dim=DIM)

    def __init__(self):
        self.batches = []

    def encode_queries(self, queries):
        self.batches.append(len(queries))
        texts = ["|".join([query.question, *(p.id for p in query.passages)]) for query in queries]
        seeds = [sum(5**n * ord(letter) for n, letter in enumerate(text)) for text in texts]
        return np.stack([np.random.default_rng(s).standard_normal(DIM) for s in seeds]).astype(
            np.float32
        )


def retriever(**settings):
    return MultiHopRetriever(DenseRetriever(Flat(VECTORS), STORE, Encoder()), STORE, **settings)


def all_paths(question, hops):
    """Every set of `hops` passages in its best order, of those that continue a best order, best
    first.
    """
    best = {frozenset(): ((), 0.0)}
    for _ in range(hops):
        longer = {}
        for path, score in best.values():
            query = Encoder().encode_queries(
                [Query(question, tuple(PASSAGES[row] for row in path))]
            )[0]
            for row in set(range(N)) - set(path):
                result = ((*path, row), score + float(query @ VECTORS[row]))
                if result[1] > longer.get(frozenset(result[0]), ((), -np.inf))[1]:
                    longer[frozenset(result[0])] = result
        best = longer
    ranked = sorted(best.values(), key=lambda result: -result[1])
    return [(tuple(f"p{row}" for row in path), score) for path, score in ranked]


def shown(paths):
    return [
        (tuple(hit.passage_id for hit in path.hits), pytest.approx(path.score, abs=1e-5))
        for path in paths
    ]


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_a_beam_as_wide_as_the_corpus_finds_what_counting_all_paths_finds(hops):
    questions = ["who", "where was it"]
    result = retriever(hops=hops, beam=N**2).search_paths(questions, 1000)[1]
    for question, paths in zip(questions, result, strict=True):
        assert all_paths(question, hops) == shown(paths)


def test_all_questions_and_beams_of_a_hop_are_one_batch_and_every_hop_is_timed():
    searcher, timer = retriever(hops=3, beam=3), dict[str, float]()
    searcher.search_paths(["a", "b"], 5, timer=timer)
    assert searcher.dense.encoder.batches == [2, 6, 6]
    assert list(timer) == ["hop_1", "hop_2", "hop_3"]


def test_the_list_holds_path_after_path_each_with_what_the_question_finds_first_in_front():
    searcher, swapped = retriever(hops=2, beam=2), 0
    assert isinstance(searcher, Retriever)
    for question in "abcdefghijklmnop":
        hits, paths = (actual[0] for actual in searcher.search_paths([question], 6))
        alone = [hit.row for hit in searcher.dense.search([question], 6)[0]]
        rows = [
            sorted((hit.row for hit in path.hits), key=[*alone, *range(N)].index) for path in paths
        ]
        in_hops = list(dict.fromkeys(hit.row for path in paths for hit in path.hits))
        expected = list(dict.fromkeys(row for path in rows for row in path))
        swapped += expected[:6] != in_hops[:6]
        assert [hit.row for hit in hits][: len(expected)] == expected[:6]
        assert len({hit.row for hit in hits}) == len(hits) == 6
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
    assert swapped


def test_first_hits_of_another_retriever_take_the_scores_of_the_dense_list():
    def search(questions, top_k):
        hits = [Hit(4, "p4", 31.0), Hit(1, "p1", 7.0)]
        return [hits if question == "who" else [] for question in questions]

    words = MadeRetriever(search)
    paths = retriever(hops=1, first=words).search_paths(["who", "nothing"], 5)[1]
    best, next_ = (hit.score for hit in retriever(hops=1).search(["who"], 2)[0])
    assert [(p.hits[0].passage_id, p.score) for p in paths[0]] == [("p4", best), ("p1", next_)]
    assert paths[1] == []
    assert retriever(hops=2, first=words).search(["nothing"], 5) == [[]]


def test_paths_over_a_real_index_from_either_first_hop(tmp_path):
    passages = [
        Passage("danube", "Danube", "The Danube rises in the Black Forest of Germany."),
        Passage("germany", "Germany", "Germany is a country; its capital is Berlin."),
        Passage("rhine", "Rhine", "The Rhine ends in the North Sea."),
    ]
    place = write_index(
        tmp_path / "index",
        passages,
        encoder=BiEncoder.load(),
        settings=BuildSettings(retriever="hybrid"),
    ).directory
    with Index.open(place) as index:
        for first in ("dense", "hybrid"):
            searcher = open_retriever(index, f"multihop:beam=3,first={first}")
            asked = ["What is the capital of the country where the Danube rises?"]
            paths = searcher.search_paths(asked, 9)[1][0]
            assert [hit.passage_id for hit in paths[0].hits] == ["danube", "germany"]
            assert all(len({hit.row for hit in path.hits}) == 2 for path in paths)
        with refusal(ConfigError):
            open_retriever(index, "multihop", fusion=Fusion())


def test_reports_tell_one_beam_from_another():
    narrow = retriever(beam=2)
    others = [retriever(beam=3), retriever(beam=2, hops=3), retriever(beam=2, first=retriever())]
    assert narrow.identity == retriever(beam=2).identity
    assert all(narrow.identity != other.identity for other in others)
