"""Re-ranking: order and scores of each judge against one pair at a time, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForSequenceClassification

from rag.core.errors import ArtifactError, ConfigError
from rag.core.types import FirstStage, Hit, Passage
from rag.pipeline import Pipeline
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.cross_encoder import CrossEncoder
from retrievers.hybrid import Fusion
from retrievers.protocols import Retriever
from retrievers.rerank import DEFAULT_FUSION, Rerank, RerankingRetriever, reranked
from tests.pipeline_parts import Store
from tests.support.messages import refusal

TEXTS = [
    "the river rises",
    "black forest",
    "who wrote text",
    "danube river",
    "title text the",
    "in the",
]
PASSAGES = [Passage(f"p{n}", "danube" if n % 2 else "", text) for n, text in enumerate(TEXTS)]
QUESTIONS = [
    "who wrote the text",
    "the river danube",
    "in black forest",
] * 12  # more than one block


STORE = Store(PASSAGES)
ALONE = "fusion=raw:1,0"


class First(Retriever):
    """Finds every passage, by its row."""

    def search(self, questions: Any, top_k: int, **how: Any) -> list[list[Hit]]:
        hits = [Hit(row, passage.id, -float(row)) for row, passage in enumerate(PASSAGES)]
        return [hits[:top_k] for _ in questions]


@pytest.fixture(scope="module")
def folders(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("judges")
    tiny.late_interaction(place / "colbert")
    torch.manual_seed(0)
    config = BertConfig(**tiny.config(), num_labels=1)
    BertForSequenceClassification(config).save_pretrained(place / "cross")
    tiny.tokenizer(place / "cross")
    return {"colbert": place / "colbert", "cross-encoder": place / "cross"}


def one_pair(kind: str, folder: Path, question: str, passage: Passage) -> float:
    if kind == "cross-encoder":
        return float(CrossEncoder.load(folder, precision="fp32").score([question], [passage])[0])
    encoder = BiEncoder.load(folder, precision="fp32")
    query = encoder.question_tokens([question]).values.numpy()
    result = encoder.passage_tokens([passage.title], [passage.text]).values.numpy()
    return float((query @ result.T).max(1).sum())


@pytest.mark.parametrize("kind", ["colbert", "cross-encoder"])
def test_hits_get_the_judges_scores_and_keep_their_first_place(
    kind: str, folders: dict[str, Path]
) -> None:
    retriever = reranked(
        First(), STORE, Rerank.parse(f"{folders[kind]},depth=5,{ALONE}"), precision="fp32"
    )
    timer = dict[str, float]()
    lists = retriever.search(QUESTIONS, 3, timer=timer)
    assert len(lists) == len(QUESTIONS)
    assert set(timer) == {"rerank"}
    for question, hits in list(zip(QUESTIONS, lists, strict=True))[-3:]:
        expected = {n: one_pair(kind, folders[kind], question, PASSAGES[n]) for n in range(5)}
        best = sorted(expected, key=lambda n: -expected[n])[:3]
        assert [hit.row for hit in hits] == best
        np.testing.assert_allclose(
            [hit.score for hit in hits], [expected[n] for n in best], atol=1e-5
        )
        assert [hit.first_stage for hit in hits] == [FirstStage(n + 1, -float(n)) for n in best]
    assert retriever.search([], 3) == []


def test_hits_behind_the_depth_follow_in_their_order_and_are_not_judged(
    folders: dict[str, Path],
) -> None:
    spec = f"{folders['cross-encoder']},depth=3,{ALONE}"
    retriever = reranked(First(), STORE, Rerank.parse(spec), precision="fp32")
    (judged,), (hits,) = retriever.search(QUESTIONS[:1], 3), retriever.search(QUESTIONS[:1], 6)
    assert hits[:3] == judged
    assert [hit.row for hit in hits[3:]] == [3, 4, 5]
    assert hits[3].first_stage == FirstStage(4, -3.0)
    np.testing.assert_allclose(np.diff([hit.score for hit in hits[2:]]), -1.0, atol=1e-5)


class Given:
    name = "given"

    def __init__(self, scores: dict[str, float]) -> None:
        self.scores = scores

    def score(self, questions: Any, passages: Any) -> Any:
        return np.array([self.scores.get(passage.id, 0.0) for passage in passages])


def test_both_stages_scores_are_added_in_the_judge_s_deviations() -> None:
    judge = Given({"p0": 7.0, "p1": 9.0, "p2": 8.0})

    def found(fusion: Fusion = DEFAULT_FUSION) -> list[Hit]:
        both = RerankingRetriever(First(), STORE, judge, depth=3, fusion=fusion)
        return both.search(["x"], 3)[0]

    z = 1.5**0.5  # the deviation of 7, 8, 9 is 1 / z; the first stage says 0, -1, -2
    assert [hit.passage_id for hit in found()] == ["p1", "p2", "p0"]
    np.testing.assert_allclose([hit.score for hit in found()], [z - 0.5, -1.0, -z])
    assert found()[0].first_stage == FirstStage(2, -1.0)
    assert [hit.passage_id for hit in found(Fusion("std", (1, 9)))] == ["p0", "p1", "p2"]
    assert [hit.score for hit in found(Fusion.parse("raw:1,0"))] == [9.0, 8.0, 7.0]


def test_the_reader_that_answers_re_ranks_too(tmp_path: Path) -> None:
    texts = [
        "Oslo is a city.",
        "\u200b",
        "Oslo became the capital of Norway in 1814.",
        "Norway has fjords.",
    ]
    Pipeline.from_texts(texts, out=tmp_path / "index", reader=False).close()
    question = "When did Oslo become the capital of Norway?"
    with Pipeline.open(
        tmp_path / "index", rerank=f"reader,depth=4,{ALONE}", precision="fp32"
    ) as pipeline:
        judge = pipeline.retriever
        assert isinstance(judge, RerankingRetriever)
        assert pipeline.identity["rerank"]["kind"] == "reader"
        hits = pipeline.retrieve(question, 4)
        assert hits[0][1].text == texts[2]
        alone = [float(judge.scorer.score([question], [passage])[0]) for _, passage in hits]
        rows = pipeline.reader.score([question], [[passage for _, passage in hits]])  # type: ignore[union-attr]
        expected = np.full(len(hits), -np.inf)
        np.maximum.at(expected, rows.owners[:, 1], rows.scores.spans[:, 0] - rows.scores.nulls)
        known = np.isfinite(expected)
        np.testing.assert_allclose(np.array(alone)[known], expected[known], atol=1e-4)
        best_first = sorted(expected[known], reverse=True)
        lowest = best_first[-1]  # what the passage without a word gets
        np.testing.assert_allclose([hit.score for hit, _ in hits], [*best_first, lowest], atol=1e-4)
        assert pipeline.ask(question).answers[0].text == "1814"
        untitled = pipeline.relevance(question, texts)
        assert pipeline.scorer.is_log_odds
        assert int(untitled.argmax()) == 2
    with Pipeline.open(tmp_path / "index", precision="fp32") as plain:
        np.testing.assert_allclose(plain.relevance(question, texts), untitled, atol=1e-6)
    searched = Pipeline.open(tmp_path / "index", reader=False, rerank="reader")
    assert searched.retrieve(question, 1)[0][1].text == texts[2]
    with refusal(ConfigError):
        Pipeline.open(tmp_path / "index", reader=False).relevance(question, texts)
    with refusal(ConfigError):
        reranked(First(), STORE, Rerank(model="reader"))


def test_what_cannot_judge_is_refused(tiny: Any, folders: dict[str, Path], tmp_path: Path) -> None:
    def opened(spec: str) -> RerankingRetriever:
        return reranked(First(), STORE, Rerank.parse(spec))

    with refusal(ConfigError):
        opened(str(tiny.bert(tmp_path / "plain")))
    for architecture in ("T5ForConditionalGeneration", "Qwen3ForCausalLM"):  # before any weights
        folder = tmp_path / architecture
        folder.mkdir()
        config = {"architectures": [architecture], "model_type": "t5"}
        (folder / "config.json").write_text(json.dumps(config))
        with refusal(ConfigError):
            opened(str(folder))
    with refusal(ConfigError):
        opened(str(tiny.sentence_transformer(tmp_path / "vectors")))
    with refusal(ArtifactError):
        opened(str(tmp_path / "nowhere"))
    tiny.late_interaction(tmp_path / "wrong")
    save_file({"linear.weight": torch.zeros(6, 20)}, tmp_path / "wrong/1_Dense/model.safetensors")
    with refusal(ArtifactError):
        opened(str(tmp_path / "wrong")).search(["danube"], 2)
    for spec in ("", "a,deep=3", "a,depth=0", "a,fusion=std:1,2,3", "a,fusion=half,depth=3"):
        with refusal(ConfigError):
            Rerank.parse(spec)
    paths = First()
    paths.finds_paths = True
    with refusal(ConfigError):
        reranked(paths, STORE, Rerank(model=str(folders["colbert"])))
