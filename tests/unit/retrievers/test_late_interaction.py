"""Token vectors behind their encoder: found like any other retriever, scored as the encoder scores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.build import build_index
from indexers.index import Index
from indexers.protocols import EncoderIdentity
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.progress import StageTimer
from rag.core.types import Passage
from rag.pipeline import Pipeline
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.vectors import max_sim
from retrievers.hybrid import HybridRetriever
from retrievers.late_interaction import LateInteractionRetriever
from retrievers.open import open_retriever
from retrievers.rerank import LateInteraction, RerankingRetriever, reranked
from retrievers.training.bi_encoder import adopt_index
from retrievers.training.dpr import DprTrainConfig

WORDS = ["danube", "forest", "river", "black", "title", "text", "wrote", "who", "rises", "the"]


def passages() -> list[Passage]:
    draw = np.random.default_rng(2)
    return [Passage(f"p{n}", "", " ".join(draw.choice(WORDS, 6))) for n in range(60)]


@pytest.fixture(scope="module")
def built(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("late")
    tiny.late_interaction(place / "model", dim=16)
    settings = BuildSettings(retriever="hybrid", index_type="plaid", token_bits=4)
    encoder = BiEncoder.load(place / "model", precision="fp32")
    return build_index(passages(), place / "index", encoder=encoder, settings=settings)


def test_the_index_alone_is_enough_and_scores_are_maxsim(built: Path) -> None:
    pipeline = Pipeline.open(built, retriever="colbert:ndocs=240", reader=False, precision="fp32")
    assert isinstance(pipeline.retriever, LateInteractionRetriever)
    texts, timer = ["who wrote the text", "black river"], StageTimer()
    found = pipeline.retrieve(texts, 5, timer=timer)
    assert {"encode_question", "search_tokens"} <= set(timer.timings_ms)
    encoder = pipeline.retriever.encoder
    assert isinstance(encoder, BiEncoder)
    stored = encoder.passage_tokens([""] * 60, [passage.text for passage in passages()])
    wanted = max_sim(encoder.question_tokens(texts), stored).numpy()
    for pairs, scores in zip(found, wanted, strict=True):
        rows = [hit.row for hit, _ in pairs]
        np.testing.assert_allclose([hit.score for hit, _ in pairs], scores[rows], atol=0.1)
        assert scores[rows].mean() > np.sort(scores)[-10]
        assert [hit.score for hit, _ in pairs] == sorted((hit.score for hit, _ in pairs), reverse=True)


def test_kinds_of_an_index_of_tokens(built: Path) -> None:
    with Index.open(built) as index:
        assert index.parts == ("tokens", "bm25")
        fused = open_retriever(index)
        assert isinstance(fused, HybridRetriever)
        assert isinstance(fused.members[0], LateInteractionRetriever)
        assert fused.search([], 3) == []
        for kind in ("dense", "multihop"):
            with pytest.raises(ConfigError, match="needs a dense index; this one has tokens and bm25"):
                open_retriever(index, kind)
        with pytest.raises(ConfigError, match="docs"):
            open_retriever(index, "colbert:docs=3")
        with pytest.raises(ConfigError, match="has no vectors"):  # one of each passage
            index.require_dense()
        config = DprTrainConfig(out=built / "run", train_files=(built,), index=built)
        with pytest.raises(ConfigError, match="has no vectors"):
            adopt_index(config, index)


def test_reranking_by_the_index_s_model_reads_its_vectors(tiny: Any, built: Path, tmp_path: Path) -> None:
    with Index.open(built) as index:
        model = index.encoder_identity.name if index.encoder_identity else ""
        spec = f"{model},depth=20,fusion=raw:1,0"
        again = reranked(open_retriever(index, "bm25"), index, spec, precision="fp32")
        assert isinstance(again, RerankingRetriever)
        assert isinstance(again.scorer, LateInteraction)
        assert index.tokens is not None
        assert index.encoder_identity is not None
        assert again.scorer.stored is index.tokens
        assert again.identity["weights_sha256"] == index.encoder_identity.weights_sha256  # its head's too
        assert again.identity["token_bits"] == index.tokens.info["bits"]
        texts = ["who wrote the text", "black river", "xyz"]
        hits = again.search(texts, 8)
        again.scorer.stored = None
        encoded = again.search(texts, 8)
        assert hits[2] == encoded[2] == []
        for stored, fresh in zip(hits[:2], encoded[:2], strict=True):
            assert {hit.row for hit in stored} & {hit.row for hit in fresh}
            scores = {hit.row: hit.score for hit in fresh}
            shared = [hit for hit in stored if hit.row in scores]
            np.testing.assert_allclose([h.score for h in shared], [scores[h.row] for h in shared], atol=0.1)
        tiny.late_interaction(tmp_path / "other", dim=16, seed=7)
        other = reranked(open_retriever(index, "bm25"), index, f"{tmp_path / 'other'}")
        assert isinstance(other, RerankingRetriever)
        assert isinstance(other.scorer, LateInteraction)
        assert other.scorer.stored is None
        assert "token_bits" not in other.identity


def test_reranking_reads_the_vectors_of_an_index_beside_the_searched_one(
    tiny: Any, built: Path, tmp_path: Path
) -> None:
    build_index(passages(), tmp_path / "words", settings=BuildSettings(retriever="bm25"))
    build_index(passages()[:-1], tmp_path / "fewer", settings=BuildSettings(retriever="bm25"))
    with Index.open(built) as tokens, Index.open(tmp_path / "words") as words:
        assert tokens.encoder_identity is not None
        spec = f"{tokens.encoder_identity.name},tokens={built}"
        beside = reranked(open_retriever(words, "bm25"), words, spec, precision="fp32")
        within = reranked(open_retriever(tokens, "bm25"), tokens, spec.split(",")[0], precision="fp32")
        texts = ["who wrote the text", "black river"]
        assert beside.search(texts, 8) == within.search(texts, 8)
        tiny.late_interaction(tmp_path / "other", dim=16, seed=7)
        with pytest.raises(
            MismatchedArtifactError, match=r"cannot score the token vectors .* weights_sha256"
        ):
            reranked(open_retriever(words, "bm25"), words, f"{tmp_path / 'other'},tokens={built}")
        with pytest.raises(ConfigError, match=r"index.type plaid"):
            reranked(open_retriever(words, "bm25"), words, f"{spec.split('=')[0]}={tmp_path / 'words'}")
    with (
        Index.open(tmp_path / "fewer") as fewer,
        pytest.raises(MismatchedArtifactError, match="other passages"),
    ):
        reranked(open_retriever(fewer, "bm25"), fewer, spec)


def test_a_saved_pipeline_finds_the_index_of_its_re_ranker(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(passages(), tmp_path / "words", settings=BuildSettings(retriever="bm25"))
    monkeypatch.chdir(built.parent)
    spec = f"model,depth=20,tokens={built.name},fusion=raw:1,0"
    with Pipeline.open(tmp_path / "words", rerank=spec, reader=False, precision="fp32") as pipeline:
        wanted = pipeline.retrieve("black river", 5)
        pipeline.save(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    with Pipeline.open(tmp_path / "saved", reader=False, precision="fp32") as again:
        assert again.retrieve("black river", 5) == wanted


def test_an_index_of_shorter_passages_is_reranked_by_its_own_model(built: Path, tmp_path: Path) -> None:
    model = built.parent / "model"
    encoder = BiEncoder.load(model, precision="fp32", max_length=12)
    settings = BuildSettings(retriever="hybrid", index_type="plaid")
    build_index(passages(), tmp_path / "short", encoder=encoder, settings=settings)
    with Index.open(tmp_path / "short") as index:
        again = reranked(open_retriever(index, "bm25"), index, f"{model},tokens={tmp_path / 'short'}")
        assert isinstance(again, RerankingRetriever)
        assert isinstance(again.scorer, LateInteraction)
        assert again.scorer.stored is not None
        assert again.scorer.encoder.identity.max_length == 12


def test_what_does_not_fit_is_refused(tiny: Any, built: Path, tmp_path: Path) -> None:
    build_index(passages(), tmp_path / "bm25", settings=BuildSettings(retriever="bm25"))
    with (
        Index.open(tmp_path / "bm25") as index,
        pytest.raises(ConfigError, match=r"index.type plaid"),
    ):
        open_retriever(index, "colbert")
    tiny.late_interaction(tmp_path / "other", dim=16, seed=7)
    with Index.open(built) as index, pytest.raises(MismatchedArtifactError, match="weights_sha256"):
        open_retriever(index, "colbert", encoder=str(tmp_path / "other"))

    class Wide:
        identity = EncoderIdentity("wide", "ab", dim=32)

    with pytest.raises(MismatchedArtifactError, match="have 16 dimensions, those of the encoder have 32"):
        LateInteractionRetriever(Index.open(built).tokens, None, Wide())  # type: ignore[arg-type]
