"""REALM: its gradient, its parts against plain computation, learning, and an index that is made
anew.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage, Query
from rag.data.salient import NO_TITLES
from rag.joint.config import RealmTrainConfig
from rag.joint.fillers import MaskedReader
from rag.joint.live_index import LiveIndex
from rag.joint.realm import RealmTask, train_realm
from rag.joint.sentences import MaskedSentence, SentenceBatches
from rag.training.distributed import World
from rag.training.run_log import read_metrics
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import Epochs
from retrievers.examples.corpus import open_corpus
from retrievers.training.bi_encoder import BiEncoderModel, adopt_index, load_model
from tests.conftest import TinyModels
from tests.tiny_reader import tiny_roberta, tiny_roberta_tokenizer
from tests.unit.retrievers.training.test_ict import write_corpus

NAMES = ("Danube", "Forest", "Black", "Title", "Text")
DRAW = np.random.default_rng(4)
CODES = list(
    dict.fromkeys(" ".join(DRAW.choice(list("efghijknopqst"), 4, replace=False)) for _ in range(24))
)
READ: dict[str, Any] = {"precision": "fp32", "max_length": 32, "pooling": "mean", "normalize": True}
FACTS = [(code, NAMES[n % len(NAMES)]) for n, code in enumerate(CODES)]


def settings(place: Path, **more: Any) -> RealmTrainConfig:
    given: dict[str, Any] = {
        "out": place / "run",
        "train_files": (place / "sentences.jsonl",),
        "index": place / "index",
        "documents": 4,
        "batch_size": 16,
        "split": "none",
        "precision": "fp32",
        "threads": 1,
        "log_every_steps": 1,
        "refresh_every_steps": 20,
        "epochs": 9,
        "question_tokens": 32,
        "dropout": 0.0,
        "reader": str(place / "mlm"),
        "sentence_tokens": 32,
        "joint_tokens": 60,
        "mlm_dropout": 0.0,
    }
    return RealmTrainConfig(**{**given, **more})


def make_world(place: Path, tiny: TinyModels) -> Path:
    """Sentences with a name that only one passage tells; an encoder that hardly finds it."""
    tiny.bert(place / "encoder", seed=2)
    warm_reader(tiny.bert(place / "bare", seed=7)).save_pretrained(place / "mlm")
    tiny.tokenizer(place / "mlm")
    texts = [f"Who wrote {code} in {name} rises?" for code, name in FACTS]
    write_corpus(place / "sentences.jsonl", texts)
    passages = [
        Passage(str(n), "", f"the river {code} {name}") for n, (code, name) in enumerate(FACTS)
    ]
    encoder = BiEncoder.load(place / "encoder", **READ)
    write_index(place / "index", passages, encoder=encoder, settings=BuildSettings(probes=8))
    return place


def warm_reader(folder: Path) -> Any:
    """A network that reads the masked name off its passage: what no reader looks for teaches no
    retriever.
    """
    torch.manual_seed(0)
    reader, draw = MaskedReader.load(folder, max_tokens=60, dropout=0.0), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(reader.parameters(), lr=3e-3)

    def ids(text: str) -> Any:
        return np.array(reader.tokenizer(text, add_special_tokens=False)["input_ids"])

    for _ in range(60):
        masked, listed = [], []
        for name in draw.choice(NAMES, 24).tolist():
            code = " ".join(draw.choice(list("efghijknopqst"), 4, replace=False))
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
    return make_world(tmp_path_factory.mktemp("realm"), tiny)


def task_over(index: Index, config: RealmTrainConfig) -> RealmTask:
    config = adopt_index(config, index, same_encoder=True)
    reader = MaskedReader.load(str(config.reader), max_tokens=60, dropout=0.0)
    return RealmTask(config, load_model(config, "cpu"), reader, index, LiveIndex(index), World())


def sentences(world: Path, out: Path) -> SentenceBatches:
    store = open_corpus([world / "sentences.jsonl"], out, "none")
    return SentenceBatches(
        store,
        MaskedReader.load(world / "mlm", max_tokens=60).tokenizer,
        titles=NO_TITLES,
        sentence_tokens=32,
        min_words=4,
        examples=Epochs(len(store), 8, epochs=2, seed=1),
    )


def test_what_is_read_with_a_sentence(world: Path, tmp_path: Path) -> None:
    """Its own passage and copies are left out, the null document is first; the model as it is
    scores them.
    """
    texts = ["Who  wrote e f\nin Danube ?", "the river e f", "the river e f", "in the black forest"]
    passages = [Passage(str(n), "", text) for n, text in enumerate(texts)]
    encoder = BiEncoder.load(world / "encoder", **READ)
    write_index(tmp_path / "index", passages, encoder=encoder, settings=BuildSettings(probes=4))
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
    passages = [
        Passage(str(n), "", f"the river {code} {name}") for n, (code, name) in enumerate(FACTS)
    ]
    write_index(tmp_path / "index", passages, encoder=encoder, settings=BuildSettings(probes=4))
    encoded: list[list[int]] = []
    encode = BiEncoderModel.encode_questions
    monkeypatch.setattr(
        BiEncoderModel,
        "encode_questions",
        lambda self, ids: (encoded.extend(ids), encode(self, ids))[1],
    )
    train_realm(settings(world, out=tmp_path / "run", index=tmp_path / "index", max_steps=1))
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
        if (
            step := next(steps)
        ) % 5 == 0 and step < 15:  # just made anew: as if all was encoded now
            with torch.no_grad():
                every = tasks[0].retriever.read(
                    [Passage("", "", f"the river {c} {n}") for c, n in FACTS]
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
    finished = train_realm(config)
    assert len(result) == 3
    assert all(actual == expected for expected, actual in result)
    records = [record for record in read_metrics(config.out / "metrics.jsonl") if "loss" in record]
    losses, utility = ([record[name] for record in records] for name in ("loss", "utility"))
    assert np.mean(losses[-7:]) < 0.8 * np.mean(losses[:7])
    assert np.mean(utility[-7:]) > np.mean(utility[:7])
    before, after = ([record[name] for record in records] for name in ("p_gold", "posterior_gold"))
    assert np.mean(after) > np.mean(before)
    assert np.mean(before[-7:]) > np.mean(before[:7])
    assert {"null", "found", "p_gold", "index_age_steps"} <= records[-1].keys()

    def first(encoder: BiEncoder) -> float:
        queries = encoder.encode_questions(
            [f"Who wrote {code} in [MASK] rises?" for code, _ in FACTS]
        )
        vectors = encoder.encode_passages(
            [""] * len(FACTS), [f"the river {c} {n}" for c, n in FACTS]
        )
        return float(((queries @ vectors.T).argmax(1) == np.arange(len(FACTS))).mean())

    assert first(BiEncoder.load(finished)) > first(BiEncoder.load(world / "encoder", **READ)) + 0.15
    MaskedReader.load(config.out / "mlm", max_tokens=60)


def test_sentences_that_no_passage_fills_in_can_be_left_out(world: Path, tmp_path: Path) -> None:
    with Index.open(world / "index") as index:
        config = settings(world, out=tmp_path / "run", answered_within=3, batch_size=2)
        task = task_over(index, config)
        batches = sentences(world, tmp_path)
        batch = [sentence for number in range(3) for sentence in batches[number]]
        vectors = task.retriever.ask([Query(sentence.query) for sentence in batch])
        passages = list(index.passages)
        scores = vectors @ task.retriever.read(passages).T
        expected = [
            sentence
            for sentence, best in zip(batch, scores.topk(3).indices.tolist(), strict=True)
            if any(sentence.words in passages[row].text for row in best)
        ]
        assert 2 < len(expected) < len(batch)
        filtered = task.loss(batch)
        task.config = task.config.replaced(answered_within=0)
        plain = task.loss(expected[:2])
    assert filtered.examples == 2
    assert filtered.parts["answered"] == pytest.approx(len(expected) / len(batch))
    assert float(filtered.value) == pytest.approx(float(plain.value))


def test_what_cannot_work_is_refused(world: Path, tiny: TinyModels, tmp_path: Path) -> None:
    plain = write_corpus(tmp_path / "plain.jsonl", ["nothing here has any name at all"] * 3)
    with pytest.raises(
        DataError, match="of a sample of 3, 0 passages have a sentence with anything to mask"
    ):
        train_realm(settings(world, out=tmp_path / "a", train_files=(plain,)))
    tiny.dpr(tmp_path / "towers")
    write_index(
        tmp_path / "index",
        [Passage("a", "", "the river"), Passage("b", "", "text")],
        encoder=BiEncoder.load(tmp_path / "towers", precision="fp32"),
        settings=BuildSettings(probes=2),
    )
    with pytest.raises(ConfigError, match="different weights, and shared is true"):
        train_realm(settings(world, out=tmp_path / "c", index=tmp_path / "index"))
