"""REALM: its gradient, its parts against plain computation, learning, and an index that is made
anew.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from indexers.index import Index
from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage, Query
from rag.joint.config import RealmTrainConfig
from rag.joint.fillers import MaskedReader
from rag.joint.live_index import LiveIndex
from rag.joint.realm import RealmTask
from rag.joint.sentences import MaskedSentence
from rag.training.distributed import World
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.bi_encoder import BiEncoderModel, adopt_index, load_model
from tests.conftest import TinyModels
from tests.support.messages import refusal
from tests.support.training import records
from tests.tiny_masks import (
    NAMES,
    READ,
    SMALL,
    TEXTS,
    draw_code,
    found_share,
    sentence_batches,
    write_facts,
    write_passages,
)
from tests.tiny_reader import tiny_roberta, tiny_roberta_tokenizer
from tests.unit.retrievers.training.test_ict import write_corpus


def settings(place: Path, **more: Any) -> RealmTrainConfig:
    given: dict[str, Any] = {
        **SMALL,
        "out": place / "run",
        "train_files": (place / "sentences.jsonl",),
        "index": place / "index",
        "documents": 4,
        "batch_size": 16,
        "refresh_every_steps": 20,
        "epochs": 9,
        "question_tokens": 32,
        "dropout": 0.0,
        "reader": str(place / "mlm"),
    }
    return RealmTrainConfig(**{**given, **more})


def warm_reader(folder: Path) -> Any:
    """A network that reads the masked name off its passage: what no reader looks for teaches no
    retriever.
    """
    torch.manual_seed(0)
    reader = MaskedReader.load(folder, max_tokens=60, dropout=0.0)
    draw = np.random.default_rng(0)
    optimizer = torch.optim.AdamW(reader.parameters(), lr=3e-3)

    def ids(text: str) -> Any:
        return np.array(reader.tokenizer(text, add_special_tokens=False)["input_ids"])

    for _ in range(60):
        masked = []
        listed = []
        for name in draw.choice(NAMES, 24).tolist():
            code = draw_code(draw)
            tokens = ids(f"Who wrote {code} in [MASK] rises?")
            place = np.flatnonzero(tokens == reader.tokenizer.mask_token_id)
            masked.append(MaskedSentence("", "", tokens, place, ids(name)))
            listed.append([ids(f"the river {code} {name}").tolist()])
        loss = -reader(masked, listed).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimizer.step()
    return reader.model


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: TinyModels) -> Path:
    place = tmp_path_factory.mktemp("realm")
    write_facts(place, tiny)
    warm_reader(tiny.bert(place / "bare", seed=7)).save_pretrained(place / "mlm")
    tiny.tokenizer(place / "mlm")
    return place


def task_over(index: Index, config: RealmTrainConfig) -> RealmTask:
    config = adopt_index(config, index, same_encoder=True)
    reader = MaskedReader.load(str(config.reader), max_tokens=60, dropout=0.0)
    return RealmTask(config, load_model(config, "cpu").model, reader, LiveIndex(index), World())


def test_what_is_read_with_a_sentence(world: Path, tmp_path: Path) -> None:
    """Its own passage and copies are left out, the null document is first; the model as it is
    scores them.
    """
    texts = ["Who  wrote e f\nin Danube ?", "the river e f", "the river e f", "in the black forest"]
    encoder = BiEncoder.load(world / "encoder", **READ)
    write_passages(tmp_path / "index", encoder, texts)
    masked = MaskedSentence(
        "Who wrote e f in Danube?",
        "Who wrote e f in [MASK]?",
        np.array([7, 4]),
        np.array([1]),
        np.array([9]),
    )
    with Index.open(tmp_path / "index") as index:
        task = task_over(index, settings(world, index=tmp_path / "index"))
        retriever = task.retriever
        scores, [read] = task.retrieve([masked])
        assert read[0] == read[3] == ""
        assert set(read[1:3]) == {"the river e f", "in the black forest"}
        assert scores[0, 3] == float("-inf")
        query = encoder.encode_questions([masked.query])[0]
        vectors = encoder.encode_passages([""] * 3, read[:3])
        expected = (vectors @ query) * retriever.scale
        np.testing.assert_allclose(scores[0, :3].detach().numpy(), expected, atol=1e-4)
        weights = [p for p in retriever.parameters() if p.ndim > 1][:1]
        assert torch.autograd.grad(scores[0, 1], weights)[0].abs().sum() > 0

        # nothing is masked in the second sentence, so that every passage has it
        loss = task.loss([replace(masked, words="black forest"), masked])
        assert loss.examples == 2
        place = read.index("in the black forest")
        likelihoods = task.reader([masked], [task.reader.tokens(read)])[0].sum(1)
        for name, weights in (("p_gold", scores[0]), ("posterior_gold", scores[0] + likelihoods)):
            shares = weights.detach().softmax(0)
            target = float(shares[place] + shares[1:].sum()) / 2
            assert float(loss.parts[name]) == pytest.approx(target, abs=1e-4)
        assert loss.parts["found"] == 1
        assert task.loss([replace(masked, words="black river")]).parts["found"] == 0

        task.config = task.config.replaced(null_document=False)
        assert task.retrieve([masked])[0][0, 0] == float("-inf")
        assert torch.isfinite(task.loss([masked]).value)
        alone, read_alone = task.retrieve([replace(masked, text="")])  # it stands in every passage
        assert read_alone == [[""] * 4]
        assert alone[0].isfinite().tolist() == [True, False, False, False]
        everywhere = replace(masked, text="e f")
        batch = [masked, everywhere, replace(masked, text="")]
        assert torch.isfinite(task.loss(batch).value)


def test_the_retriever_is_asked_with_its_own_masks(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A RoBERTa finds for a BERT: `[MASK]` would be six pieces of a word to it."""
    encoder = BiEncoder.load(tiny_roberta(tmp_path / "roberta"), **READ)
    index = write_passages(tmp_path / "index", encoder)
    encoded: list[list[int]] = []
    encode = BiEncoderModel.encode_query_tokens
    monkeypatch.setattr(
        BiEncoderModel,
        "encode_query_tokens",
        lambda self, ids: (encoded.extend(ids), encode(self, ids))[1],
    )
    settings(world, out=tmp_path / "run", index=index, max_steps=1).train_model()
    mask = tiny_roberta_tokenizer().mask_token_id
    assert encoded
    assert [list(ids).count(mask) for ids in encoded] == [1] * len(encoded)


def test_filling_in_teaches_to_find_and_the_index_follows(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(
        world,
        out=tmp_path / "run",
        epochs=20,
        learning_rate=1e-3,
        learning_rates={"reader": 1e-5},
        refresh_every_steps=5,
        batch_size=12,
        documents=13,
    )
    result: list[list[list[int]]] = []
    search = LiveIndex.search
    steps = iter(range(10_000))

    def compared(live: Any, questions: torch.Tensor, top_k: int) -> Any:
        rows = search(live, questions, top_k)
        if next(steps) in (0, 5, 10):  # just made anew: as if all was encoded now
            with torch.no_grad():
                every = tasks[0].retriever.encode_passages(
                    [Passage("", "", text) for text in TEXTS]
                )
            best = (questions.detach() @ every.T).topk(5).indices
            result.append([best.tolist(), rows[:, :5].tolist()])
        return rows

    tasks: list[RealmTask] = []
    init = RealmTask.__init__
    monkeypatch.setattr(
        RealmTask, "__init__", lambda self, *a, **k: (init(self, *a, **k), tasks.append(self))[0]
    )
    monkeypatch.setattr(LiveIndex, "search", compared)
    finished = config.train_model()
    assert len(result) == 3
    assert all(actual == expected for expected, actual in result)
    assert {"null", "found", "p_gold", "index_age_steps"} <= records(config.out)[-1].keys()
    measured = {
        name: np.array([record[name] for record in records(config.out)])
        for name in ("loss", "utility", "p_gold", "posterior_gold")
    }
    gained = {name: values[-7:].mean() - values[:7].mean() for name, values in measured.items()}
    assert gained["loss"] < -0.2 * measured["loss"][:7].mean()
    assert gained["utility"] > 0
    assert gained["p_gold"] > 0
    assert measured["posterior_gold"].mean() > measured["p_gold"].mean()
    start = BiEncoder.load(world / "encoder", **READ)
    assert found_share(BiEncoder.load(finished)) > found_share(start) + 0.15
    MaskedReader.load(config.out / "mlm", max_tokens=60)


def test_sentences_that_no_passage_fills_in_can_be_left_out(world: Path, tmp_path: Path) -> None:
    with Index.open(world / "index") as index:
        config = settings(world, out=tmp_path / "run", answered_within=3, batch_size=2)
        task = task_over(index, config)
        batches = sentence_batches(world / "sentences.jsonl", world / "mlm", tmp_path)
        batch = [sentence for number in range(3) for sentence in batches[number]]
        vectors = task.retriever.encode_queries([Query(sentence.query) for sentence in batch])
        passages = list(index.passages)
        scores = vectors @ task.retriever.encode_passages(passages).T
        expected = [
            sentence
            for sentence, best in zip(batch, scores.topk(3).indices.tolist(), strict=True)
            if any(sentence.words in passages[row].text for row in best)
        ]
        assert 2 < len(expected) < len(batch)
        filtered = task.loss(batch)
        task.config = task.config.replaced(answered_within=0)
        plain = task.loss(expected[:2])
        # Of a batch with fewer than asked for, all figures are means over those that are left.
        task.config = task.config.replaced(answered_within=3, batch_size=len(batch))
        few = task.loss(batch)
        task.config = task.config.replaced(answered_within=0)
        every = task.loss(expected)
    assert few.value.item() == pytest.approx(every.value.item())
    for name, figure in every.parts.items():
        assert float(few.parts[name]) == pytest.approx(float(figure))
    assert filtered.examples == 2
    assert filtered.parts["answered"] == pytest.approx(len(expected) / len(batch))
    assert float(filtered.value) == pytest.approx(float(plain.value))


def test_a_share_without_sentences_has_gradients_for_the_others_to_be_added_to(world: Path) -> None:
    """Also where adapters alone are trained: then the first weights are not."""
    with Index.open(world / "index") as index:
        for lora in (0, 2):
            task = task_over(index, settings(world, lora=lora))
            loss = task.loss([])
            loss.compute_gradients(lambda: None)
            gradients = [
                weights.grad for weights in task.retriever.parameters() if weights.grad is not None
            ]
            assert loss.value == 0
            assert gradients
            assert not any(gradient.any() for gradient in gradients)


def test_what_cannot_work_is_refused(world: Path, tiny: TinyModels, tmp_path: Path) -> None:
    plain = write_corpus(tmp_path / "plain.jsonl", ["nothing here has any name at all"] * 3)
    with refusal(DataError):
        settings(world, out=tmp_path / "a", train_files=(plain,)).train_model()
    encoder = BiEncoder.load(tiny.dpr(tmp_path / "towers"), precision="fp32")
    index = write_passages(tmp_path / "index", encoder, ["the river", "text"])
    with refusal(ConfigError):
        settings(world, out=tmp_path / "c", index=index).train_model()
    with pytest.raises(ValidationError, match="Input should be 0"):
        settings(world, validate_every_steps=5)  # nothing is held out
