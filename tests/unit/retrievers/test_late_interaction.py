"""Token vectors behind their encoder: found like any other retriever, scored as the encoder
scores.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.types import Passage
from rag.pipeline import Pipeline
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.vectors import max_sim
from retrievers.first_stage import LateInteractionRetriever
from retrievers.hybrid import HybridRetriever
from retrievers.open import open_retriever
from retrievers.training.bi_encoder import adopt_index
from retrievers.training.config import DprTrainConfig
from tests.support.messages import refusal

WORDS = ["danube", "forest", "river", "black", "title", "text", "wrote", "who", "rises", "the"]


def passages() -> list[Passage]:
    draw = np.random.default_rng(2)
    return [Passage(f"p{n}", "", " ".join(draw.choice(WORDS, 6))) for n in range(60)]


@pytest.fixture(scope="module")
def built(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("late")
    tiny.late_interaction(place / "model", dim=16)
    settings = BuildSettings(retriever="hybrid", index_type="plaid")
    encoder = BiEncoder.load(place / "model", precision="fp32")
    return write_index(place / "index", passages(), encoder=encoder, settings=settings).directory


def test_the_index_alone_is_enough_and_scores_are_maxsim(built: Path) -> None:
    pipeline = Pipeline.open(built, retriever="colbert", reader=False, precision="fp32")
    assert isinstance(pipeline.retriever, LateInteractionRetriever)
    texts, timer = ["who wrote the text", "black river"], dict[str, float]()
    actual = [result.passages for result in pipeline.search(texts, 5, timer=timer)]
    assert {"encode_question", "search_tokens"} <= set(timer)
    encoder = pipeline.retriever.encoder
    assert isinstance(encoder, BiEncoder)
    stored = encoder.passage_tokens([""] * 60, [passage.text for passage in passages()])
    expected = max_sim(encoder.question_tokens(texts), stored).numpy()
    for pairs, scores in zip(actual, expected, strict=True):
        rows = [hit.row for hit, _ in pairs]
        np.testing.assert_allclose([hit.score for hit, _ in pairs], scores[rows], atol=0.1)
        assert scores[rows].mean() > np.sort(scores)[-10]
        assert [hit.score for hit, _ in pairs] == sorted(
            (hit.score for hit, _ in pairs), reverse=True
        )


def test_kinds_of_an_index_of_tokens(built: Path) -> None:
    with Index.open(built) as index:
        assert index.parts == ("tokens", "bm25")
        fused = open_retriever(index)
        assert isinstance(fused, HybridRetriever)
        assert isinstance(fused.members[0], LateInteractionRetriever)
        assert fused.search([], 3) == []
        for kind in ("dense", "multihop"):
            with refusal(ConfigError):
                open_retriever(index, kind)
        with refusal(ConfigError):
            open_retriever(index, "colbert:docs=3")
        with refusal(ConfigError):  # one of each passage
            index.require_dense()
        config = DprTrainConfig(out=built / "run", train_files=(built,), index=built)
        with refusal(ConfigError):
            adopt_index(config, index)


def test_what_does_not_fit_is_refused(tiny: Any, built: Path, tmp_path: Path) -> None:
    write_index(tmp_path / "bm25", passages(), settings=BuildSettings(retriever="bm25"))
    with Index.open(tmp_path / "bm25") as index, refusal(ConfigError):
        open_retriever(index, "colbert")
    tiny.late_interaction(tmp_path / "other", dim=16, seed=7)
    with Index.open(built) as index, refusal(MismatchedArtifactError):
        open_retriever(index, "colbert", encoder=str(tmp_path / "other"))
