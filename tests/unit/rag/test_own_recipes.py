"""A loss and a pre-training of one's own, each from one file, trained as `rag train FILE.py:Class`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rag
from rag.cli.main import app
from rag.core.errors import ConfigError
from rag.core.types import Passage
from rag.data.examples import write_examples
from retrievers.encoders.bi_encoder import BiEncoder
from tests.unit.retrievers.conftest import cipher_examples

LOSS = '''
"""Each question's positive should beat the other passages of the batch by a margin."""

from pathlib import Path
from typing import ClassVar

import torch

from retrievers.training.config import ContrastiveConfig
from retrievers.training.recipe import contrastive_batches, train_bi_encoder
from retrievers.training.split import split_examples


class MarginConfig(ContrastiveConfig):
    recipe: ClassVar[str] = "margin"
    margin: float = 0.2

    def train_model(self) -> Path:
        return train_bi_encoder(self, method)


def method(config, run):
    def hinge(questions, passages, batch, score):
        scores, positives = score(questions, passages), torch.from_numpy(batch.positives)[:, None]
        above = config.margin / 0.05 + scores - scores.gather(1, positives)
        others = torch.from_numpy(~batch.ignored).scatter(1, positives, False)
        return above.relu()[others].mean()

    split = split_examples(config, run.out / "data")
    batches = contrastive_batches(config, run.training_set(split))
    scores = run.held_out_scores(split, contrastive_batches)
    return run.method(batches, run.loss(hinge), split.held_out, scores)
'''

PRETRAINING = '''
"""RetroMAE's idea: a one-layer decoder restores a heavily masked passage from the passage's vector."""

from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from rag.runtime.seeds import generator
from rag.training.fit import Loss
from rag.training.run import Method, train
from retrievers.examples.batches import Epochs
from retrievers.examples.corpus import open_corpus
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.training.bi_encoder import encoder_form, export_model, load_model
from retrievers.training.config import BiEncoderConfig, CorpusConfig
from retrievers.training.recipe import encoder_card


class RetroConfig(BiEncoderConfig, CorpusConfig):
    recipe: ClassVar[str] = "retro"
    train_files: tuple[Path, ...]
    share: float = 0.5

    def train_model(self) -> Path:
        return train(self, lambda run: method(self, run), "encoder")


class Restorer(nn.Module):
    def __init__(self, encoder, size):
        super().__init__()
        self.encoder = encoder
        self.words = nn.Embedding(size, encoder.dim)
        self.decoder = nn.TransformerEncoderLayer(encoder.dim, 4, 2 * encoder.dim, 0.0, batch_first=True)


def method(config, run):
    torch.manual_seed(config.run.seed)
    encoder = load_model(config, run.device)
    sides = encoder.settings
    tokenizer = RetrieverTokenizer(sides.question, sides.passage)
    store, _ = open_corpus(config.train_files, run.out / "data", config.split)
    model = Restorer(encoder, 256)
    epochs = Epochs.of(config, len(store))

    def loss(rows):
        passages = store.get_many(rows)
        ids = tokenizer.passages([p.title for p in passages], [p.text for p in passages])
        vectors = encoder.encode_passages(ids)[:, None]
        words = nn.utils.rnn.pad_sequence([torch.tensor(i) for i in ids], True, -100)
        draw = torch.from_numpy(generator(config.run.seed, *rows.tolist()).random(words.shape))
        hidden = (draw < config.share) | (words < 0)
        inputs = model.words(words.clamp_min(0)).masked_fill(hidden[:, :, None], 0.0) + vectors
        logits = model.decoder(inputs) @ model.words.weight.T
        value = cross_entropy(logits[hidden], words[hidden], ignore_index=-100)
        return Loss(value, len(rows), int((words >= 0).sum()))

    form = encoder_form(config, encoder)

    def export(trained):
        own = {k.removeprefix("encoder."): v for k, v in trained.weights.items() if k.startswith("encoder.")}
        export_model(run.out / "encoder", encoder, own, form)

    return Method(model, run.master(model), epochs, loss, export, encoder_card(form))
'''


def losses(run: Path) -> list[float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "margin.py").write_text(LOSS)
    (tmp_path / "retro.py").write_text(PRETRAINING)
    examples = cipher_examples(120)
    write_examples(tmp_path / "train.json", examples)
    passages: list[Passage] = [example.positives[0] for example in examples]
    rows = ({"id": p.id, "title": p.title, "text": p.text} for p in passages)
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_loss_and_a_pre_training_of_ones_own(files: Path, tiny_bert: Path) -> None:
    shared = {
        "question_encoder": str(tiny_bert), "question_tokens": 16, "passage_tokens": 24, "dropout": 0.0,
        "precision": "fp32", "threads": 1, "log_every_steps": 1, "pooling": "mean", "normalize": True,
        "learning_rate": 3e-3, "batch_size": 16,
    }  # fmt: skip
    given = {"train_files": [files / "corpus.jsonl"], "split": "none", "epochs": 3}
    encoder = rag.train(f"{files}/retro.py:RetroConfig", files / "retro", **shared, **given)
    assert losses(files / "retro")[-1] < 0.9 * losses(files / "retro")[0]
    assert BiEncoder.load(encoder, precision="fp32").encode_passages([""], ["river a b"]).shape == (1, 32)

    settings = {**shared, "epochs": 6, "margin": 0.3}
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = CliRunner().invoke(
        app,
        ["train", f"{files}/margin.py:MarginConfig", "--set", f"train_files={files / 'train.json'}",
         *assignments, "--out", str(files / "margin")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert str(files / "margin" / "encoder") in done.output
    values = losses(files / "margin")
    assert sum(values[-5:]) < 0.8 * sum(values[:5])
    assert json.loads((files / "margin" / "config.json").read_text())["margin"] == 0.3


def test_what_is_no_recipe_is_refused(files: Path) -> None:
    for name, hint in (
        (f"{files}/none.py:A", "no such file"), (f"{files}/retro.py:Restorer", "has no recipe 'Restorer'"),
        ("dprr", "there is no recipe 'dprr'"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=hint):
            rag.train(name, files / "run")
    with pytest.raises(ConfigError, match="it is no group: write its settings beside the others"):
        rag.train("dpr", files / "run", train_files=[files / "train.json"], data={"batch_size": 3})
