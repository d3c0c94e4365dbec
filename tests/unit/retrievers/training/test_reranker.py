"""`train_reranker`: the loss against brute force, and learning to rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as LibraryCrossEncoder

from rag.config import load_config
from rag.core.errors import ConfigError, DataError
from rag.core.files import read_json
from rag.core.types import Passage
from rag.data.examples import Example, write_examples
from retrievers.encoders.cross_encoder import CrossEncoder
from retrievers.training.config import RerankerTrainConfig
from retrievers.training.reranker import _step
from tests.support.files import write_json
from tests.support.messages import refusal
from tests.support.training import check_parts_sum_to_the_whole, named, records


def config(out: Path, train: Path, encoder: Path, **settings: Any) -> RerankerTrainConfig:
    return load_config(
        RerankerTrainConfig,
        overrides={
            "out": out,
            "train_files": [train],
            "question_encoder": str(encoder),
            "batch_size": 8,
            "hard_negatives": 3,
            "passage_tokens": 32,
            "precision": "fp32",
            "learning_rate": 2e-3,
            "dropout": 0.0,
            "threads": 1,
            "log_every_steps": 1,
            "validation_fraction": 0.2,
            **settings,
        },
    )


def test_the_loss_is_a_mean_over_questions(tiny_bert: Path) -> None:
    model = CrossEncoder.load(tiny_bert, train=True, dropout=0.0, max_length=32)
    passages = [Passage(str(n), "", "the river " + "ab"[n % 2] * (n + 1)) for n in range(7)]
    batch = [("who a", passages[:3]), ("who b", passages[3:5]), ("who a b", passages[5:])]
    whole = _step(model, batch)
    parts = [_step(model, part) for part in (batch[:1], batch[1:])]
    assert whole.examples == 3
    check_parts_sum_to_the_whole(model.network, whole, parts)


def kinds_file(path: Path, count: int) -> Path:
    """What is right for "who" is wrong for "wrote": neither text alone tells."""
    draw = np.random.default_rng(5)

    def passage(kind: int) -> Passage:
        letters = " ".join(draw.choice(list("abcdefgh"), 3))
        return Passage("", "", f"{('the river', 'text')[kind]} {letters}")

    examples = [
        Example.labelled(
            str(n),
            f"{('who', 'wrote')[n % 2]} {'abcdefgh'[n % 8]}",
            (),
            [passage(n % 2)],
            [passage(1 - n % 2) for _ in range(4)],
        )
        for n in range(count)
    ]
    write_examples(path, examples)
    return path


def test_what_was_learnt_ranks_and_is_a_cross_encoder(tmp_path: Path, tiny_bert: Path) -> None:
    train = kinds_file(tmp_path / "kinds.json", 96)
    chosen = config(tmp_path / "run", train, tiny_bert, epochs=10)
    folder = chosen.train_model()
    scores = records(chosen.out, "eval/list_mrr")
    assert scores[-1]["eval/nll"] < 0.8 * np.log(4)
    assert scores[-1]["eval/list_mrr"] > 70
    assert "list_top1" in named(folder, "reranker")
    judge = CrossEncoder.load(folder, precision="fp32")
    pairs = ["who wrote a"] * 2, [Passage("1", "", "the river b"), Passage("2", "", "the river z")]
    odds = judge.score(*pairs)
    again = CrossEncoder.load(folder, train=True)  # goes on from what it has, with its own head
    with torch.no_grad():
        np.testing.assert_allclose(again.logits(*pairs)[0], odds, atol=1e-4)
    written = (folder / "tokenizer.json").read_bytes()
    assert chosen.train_model() == folder  # the command repeated
    assert (folder / "tokenizer.json").read_bytes() == written
    np.testing.assert_array_equal(CrossEncoder.load(folder, precision="fp32").score(*pairs), odds)


@pytest.mark.parametrize("has_pad", [True, False])
def test_a_decoder_that_states_no_padding_is_scored_in_batches(
    tiny: Any, tmp_path: Path, has_pad: bool
) -> None:
    """Its class takes the score of the last token, which it finds by the padding."""
    start = tiny.base(tmp_path / "start", "qwen3")
    stated = read_json(start / "config.json")
    del stated["pad_token_id"]
    write_json(start / "config.json", stated)
    if not has_pad:
        tokens = read_json(start / "tokenizer_config.json")
        del tokens["pad_token"]
        write_json(start / "tokenizer_config.json", {**tokens, "eos_token": "[SEP]"})
    judge = CrossEncoder.load(start, train=True)
    judge.network.eval()
    questions = ["who wrote the text", "who"]
    passages = [Passage("1", "", "the river"), Passage("2", "", "the danube rises in the forest")]
    with torch.no_grad():
        together, _ = judge.logits(questions, passages)
        alone = [
            judge.logits([question], [passage])[0]
            for question, passage in zip(questions, passages, strict=True)
        ]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=0)
    judge.network.save_pretrained(tmp_path / "saved")
    judge.tokenizer.save_pretrained(tmp_path / "saved")
    peer = LibraryCrossEncoder(str(tmp_path / "saved"), device="cpu")
    pairs = [(q, passage.text) for q, passage in zip(questions, passages, strict=True)]
    scores = peer.predict(pairs, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(together.numpy(), scores, atol=1e-5)


@pytest.mark.parametrize("base", ["bert", "mpnet", "modernbert", "qwen3"])
def test_the_preset_raises_the_head_of_any_base(tiny: Any, tmp_path: Path, base: str) -> None:
    start = tiny.base(tmp_path / "start", base)
    chosen = load_config(
        RerankerTrainConfig,
        "reranker-small",
        overrides={
            "out": tmp_path / "run",
            "train_files": [kinds_file(tmp_path / "kinds.json", 16)],
            "question_encoder": str(start),
            "passage_tokens": 32,
            "validation_fraction": 0.0,
            "learning_rate": 1e-12,
            "weight_decay": 0.0,
            "max_steps": 2,
            "precision": "fp32",
            "threads": 1,
        },
    )
    before = CrossEncoder.load(start, train=True, seed=chosen.seed).network.state_dict()
    after = CrossEncoder.load(chosen.train_model(), train=True).network.state_dict()
    moved = {name for name, tensor in before.items() if (after[name] - tensor).abs().max() > 1e-5}
    assert {name for name in before if name.startswith(("classifier", "head", "score"))} <= moved
    assert {
        name for name in moved if "layers." in name or "layer." in name or "embed" in name
    } == set()
    assert ("bert.pooler.dense.weight" in moved) == (base == "bert")


def test_what_cannot_work_is_refused(
    tmp_path: Path, tiny_bert: Path, cipher_file: Callable[..., Path]
) -> None:
    train = cipher_file(20, negatives=0)
    with refusal(DataError):
        config(tmp_path / "run", train, tiny_bert).train_model()
    for setting in ("pooling", "select_by"):
        with refusal(ConfigError):
            config(tmp_path / "run", train, tiny_bert, **{setting: "mrr"})
    alone = cipher_file(6, negatives=0).rename(tmp_path / "held.json")
    kinds = kinds_file(tmp_path / "kinds.json", 16)
    with refusal(DataError):
        config(tmp_path / "held", kinds, tiny_bert, validation_file=alone).train_model()
