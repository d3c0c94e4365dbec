"""Dense, sparse and hybrid retrievers over indexes that are a few lines long."""

from types import SimpleNamespace

import numpy as np
import pytest

from indexers.protocols import EncoderIdentity
from rag.core.errors import ConfigError, MismatchedArtifactError, RetrievalError
from rag.core.types import Hit, Passage
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.first_stage import DenseRetriever, LateInteractionRetriever, SparseRetriever
from retrievers.hybrid import Fusion, HybridRetriever
from retrievers.multihop import MultiHopRetriever
from retrievers.open import open_encoder, open_retriever
from retrievers.protocols import Retriever
from retrievers.rerank import RerankingRetriever
from tests.pipeline_parts import MadeRetriever, Store
from tests.support.messages import refusal
from tests.unit.retrievers.conftest import Flat

STORE = Store(Passage(name, "", "") for name in "dcba")
VECTORS = np.array([[1, 0], [0, 1], [1, 0], [0.5, 0.5]], dtype=np.float32)


class Encoder:
    identity = EncoderIdentity("toy", "ab", dim=2)

    def encode_queries(self, queries):
        result = [[1, 0] if query.question == "x" else [0, 1] for query in queries]
        return np.array(result, dtype=np.float32).reshape(-1, 2)


class Terms:
    def search(self, texts, top_k, selected=None):
        return [
            [(3, 7.0), (1, 2.0), (0, 2.0)][:top_k] if text != "nothing" else [] for text in texts
        ]


def dense(**arguments):
    return DenseRetriever(Flat(VECTORS), STORE, Encoder(), **arguments)


def test_all_search_in_timed_stages_and_an_empty_list_finds_nothing():
    members, timer = [dense(), SparseRetriever(Terms(), STORE)], dict[str, float]()
    both = HybridRetriever(members, STORE)
    assert all(
        isinstance(each, Retriever) and each.search([], 5) == [] for each in [*members, both]
    )
    both.search(["x"], 3, timer=timer)
    assert set(timer) == {"encode_question", "search_dense", "search_bm25", "fuse"}


def test_what_does_not_fit_is_refused():
    with refusal(RetrievalError):
        dense().search_vectors(np.array([[np.nan, 0]], dtype=np.float32), 2)
    with refusal(ConfigError):
        HybridRetriever([dense()], STORE, fusion=Fusion())


def test_dense_breaks_ties_by_id_and_drops_what_was_not_found():
    first, second = dense().search(["x", "y"], 10)
    assert first == [Hit(2, "b", 1.0), Hit(0, "d", 1.0), Hit(3, "a", 0.5), Hit(1, "c", 0.0)]
    assert [hit.passage_id for hit in second] == ["c", "a", "b", "d"]


def test_sparse_ties_and_empty_results():
    result = SparseRetriever(Terms(), STORE).search(["x", "nothing"], 3)
    assert result == [[Hit(3, "a", 7.0), Hit(1, "c", 2.0), Hit(0, "d", 2.0)], []]


def test_hybrid_takes_depth_hits_from_each_member():
    asked = []

    def search(questions, top_k):
        asked.append(top_k)
        return [[Hit(0, "d", 1.0)] for _ in questions]

    for depth in (2, 1, 10**12):
        HybridRetriever([MadeRetriever(search)] * 2, STORE, depth=depth).search(["q"], 2)
    assert asked == [2, 2, 2, 2, 4, 4]


class Listed(Retriever):
    """Finds the same hits for every question."""

    def __init__(self, *hits, absent_score=None):
        self.hits, self.absent_score = list(hits), absent_score

    def search(self, questions, top_k, *, timer=None, selected=None):
        return [self.hits[:top_k] for _ in questions]


@pytest.mark.parametrize(
    ("absent_score", "depth", "score_of_a"),
    [(0.0, 3, 0.0), (0.0, 2, 5.0), (None, 3, 5.0), (8.0, 3, 5.0)],
    ids=["complete", "full", "not known", "above the least"],
)
def test_a_member_says_what_a_short_list_lacks(absent_score, depth, score_of_a):
    near = Listed(Hit(3, "a", 0.0), Hit(1, "c", 0.0), Hit(0, "d", 0.0))
    words = Listed(Hit(1, "c", 7.0), Hit(0, "d", 5.0), absent_score=absent_score)
    both = HybridRetriever([near, words], STORE, fusion=Fusion("raw", (1, 1)), depth=depth)
    scores = {hit.passage_id: hit.score for hit in both.search(["q"], depth)[0]}
    assert scores.get("a", score_of_a) == score_of_a
    assert scores["c"] == 7.0


class Opened(SimpleNamespace):
    """What `open_retriever` uses of an index."""

    def check_encoder(self, identity):
        if differences := self.encoder_identity.differences(identity):
            raise MismatchedArtifactError("; ".join(differences))

    def require_dense(self):
        return SimpleNamespace(vectors=self.dense)


def index(dense=None, lucene=None, identity=None):
    return Opened(
        dense=dense,
        lucene=lucene,
        parts=("dense",) * (dense is not None) + ("bm25",) * (lucene is not None),
        passages=STORE,
        encoder_identity=identity,
        tokens=None,
    )


def test_auto_takes_what_the_index_has(tiny_bert):
    encoder = BiEncoder.load(tiny_bert, precision="fp32", pooling="mean")
    vectors = SimpleNamespace(dim=32)
    both = index(dense=vectors, lucene=Terms(), identity=encoder.identity)
    assert isinstance(open_retriever(both, precision="fp32"), HybridRetriever)
    fusion = Fusion.parse("minmax:0.8,0.2")
    assert open_retriever(both, precision="fp32", fusion=fusion).fusion == fusion
    with refusal(ConfigError):
        open_retriever(both, "bm25", fusion=fusion)
    assert isinstance(open_retriever(both, "bm25"), SparseRetriever)
    assert isinstance(open_retriever(index(lucene=Terms())), SparseRetriever)
    only_dense = index(dense=vectors, identity=encoder.identity)
    assert isinstance(open_retriever(only_dense, encoder=encoder), DenseRetriever)
    with refusal(ConfigError):
        open_retriever(only_dense, "hybrid")
    with refusal(ConfigError):
        open_retriever(both, "tfidf")
    with refusal(ConfigError):
        open_retriever(both, "multihop:bean=7", encoder=encoder)
    with refusal(ConfigError):
        open_encoder(index())


def test_another_version_of_an_index_is_searched_by_the_same_models():
    judge = SimpleNamespace(
        name="judge", score=lambda questions, passages: np.arange(len(passages))
    )

    def retrievers(vectors):
        near, words = (
            DenseRetriever(Flat(vectors), STORE, Encoder()),
            SparseRetriever(Terms(), STORE),
        )
        both = HybridRetriever([near, words], STORE)
        return [
            both,
            MultiHopRetriever(near, STORE, first=both),
            RerankingRetriever(both, STORE, judge),
        ]

    newer = index(dense=Flat(VECTORS[::-1]), lucene=Terms())
    for old, expected in zip(retrievers(VECTORS), retrievers(VECTORS[::-1]), strict=True):
        assert (
            old.with_index(newer).search(["x"], 3)
            == expected.search(["x"], 3)
            != old.search(["x"], 3)
        )
    with refusal(ConfigError):
        LateInteractionRetriever(None, STORE, None).with_index(
            SimpleNamespace(tokens=None, directory="x")
        )
    with refusal(MismatchedArtifactError):
        Listed().with_index(newer)


def test_an_index_opens_its_encoder_with_the_settings_it_was_built_with(tiny, tiny_bert, tmp_path):
    built = BiEncoder.load(
        tiny_bert, precision="fp32", pooling="cls", max_length=9, query_prefix="who "
    )
    opened = open_encoder(index(identity=built.identity), precision="fp32")
    assert opened.identity == built.identity
    np.testing.assert_array_equal(
        opened.encode_questions(["wrote"]), built.encode_questions(["wrote"])
    )
    other = tiny.bert(tmp_path / "other", seed=5)
    with refusal(MismatchedArtifactError):
        open_encoder(index(identity=built.identity), encoder=other)
    with refusal(MismatchedArtifactError):
        open_encoder(index(identity=built.identity), encoder="static")
