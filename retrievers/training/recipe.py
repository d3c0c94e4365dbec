"""What the recipes of bi-encoders share: model, training set, loss, validation and export of a run."""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.protocols import EncoderIdentity
from indexers.reuse import reissue_index
from rag.core.files import fingerprint
from rag.core.manifest import MANIFEST_NAME
from rag.data.examples import Example
from rag.training.card import Card
from rag.training.distributed import World
from rag.training.fit import BatchSource, FitHooks, Loss
from rag.training.precision import MasterWeights
from rag.training.run import Method, Run, Weights, train
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.layout import PAIR
from retrievers.encoders.settings import EncoderSettings
from retrievers.examples.batches import Epochs, RetrieverBatch, RetrieverBatches
from retrievers.examples.data import ExampleSplit, ExampleTable, split_examples
from retrievers.training.bi_encoder import (
    BiEncoderModel,
    adopt_index,
    encoder_form,
    export_model,
    load_model,
    start_from_index,
)
from retrievers.training.config import BiEncoderConfig
from retrievers.training.frozen import FrozenIndex
from retrievers.training.losses import Objective, in_batch_objective
from retrievers.training.step import contrastive_step
from retrievers.training.validation import HeldOutScores


class Batches(BatchSource[Any], Protocol):
    """All batches of a run, by step."""

    batch_size: int


BatchMaker = Callable[[Any, ExampleTable, Epochs], Batches]
"""Configuration, examples, and which of them each batch holds → the batches."""


def train_bi_encoder(
    config: Any, recipe: Callable[[Any, "BiEncoderRun"], Method], *, one_process: str = ""
) -> Path:
    """Train a bi-encoder, or resume the run that `config.out` holds; see `rag.training.run.train`.

    In addition to the files of every run, writes `data/` (the divided examples) and the finished `encoder/`.
    A configuration that `keeps_index` takes the index's vectors for the passages, and trains the question
    side; then `config.out / "index"` is the index for the trained encoder, without a copy of the vectors
    where the file system allows it.

    Args:
        config: a `BiEncoderConfig`.
        recipe: makes the method from the configuration, completed by what follows from the index, and the
            run.
        one_process: see `rag.training.run.train`.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`.
    """
    if not config.keeps_index:
        config = start_from_index(config)
        return train(config, lambda run: recipe(config, BiEncoderRun.start(config, run)), "encoder")
    with Index.open(config.index) as index:
        adopted = adopt_index(config, index, same_encoder=not one_process)
        return train(
            adopted, lambda run: recipe(adopted, BiEncoderRun.start(adopted, run, index)), "encoder",
            one_process=one_process,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BiEncoderRun:
    """The parts of a bi-encoder's training run.

    Attributes:
        config: configuration of the run.
        out: its folder.
        world: the processes.
        model: in its compute dtype.
        master: its weights in fp32.
        bank: an index whose vectors are the passages'; then only the question side is trained.
    """

    config: Any
    out: Path
    world: World
    model: BiEncoderModel
    master: MasterWeights
    bank: Index | None

    @classmethod
    def start(cls, config: BiEncoderConfig, run: Run, bank: Index | None = None) -> "BiEncoderRun":
        """Load the model that training starts from."""
        model = load_model(config, run.device, freeze_passages=bank is not None)
        return cls(config, run.out, run.world, model, run.master(model), bank)

    def split_examples(self) -> ExampleSplit:
        """The examples of `config.train_files`, divided."""
        return self.with_fixed_vectors(split_examples(self.config, self.out / "data"))

    def with_fixed_vectors(self, split: ExampleSplit) -> ExampleSplit:
        """The same; with `bank`, the model takes the vectors of their passages from it."""
        if self.bank is not None:
            self.model.fixed = fixed_vectors(self.bank, chain(split.training, split.held_out))
        return split

    def loss(self, objective: Objective) -> Callable[[RetrieverBatch], Loss]:
        """The step by an objective over the vectors of whole batches."""
        chunk = self.config.chunk_size
        return lambda batch: contrastive_step(self.model, batch, self.world, chunk, objective=objective)

    def held_out_scores(
        self, held_out: Sequence[Example], make_batches: BatchMaker, objective: Objective = in_batch_objective
    ) -> HeldOutScores | None:
        """What scores the model on held-out questions: in the main process, if there are any."""
        if not self.world.is_main or not held_out:
            return None
        return HeldOutScores(self.config, held_out, make_batches, objective, self.bank)

    def method(
        self,
        batches: Batches,
        loss: Callable[[Any], Loss],
        held_out: Sequence[Example],
        evaluate: Callable[[BiEncoderModel], Mapping[str, float]] | None = None,
        hooks: Sequence[FitHooks] = (),
        facts: Mapping[str, object] | None = None,
    ) -> Method:
        """The method of a recipe that makes `encoder/`, and with `bank` also `index/`.

        Args:
            held_out: examples that are never trained on.
            evaluate: scores the model on held-out questions; needed only in the main process.
            facts: for the log and the model card, as name → value.
        """
        config, model, bank = self.config, self.model, self.bank
        form = encoder_form(config, model)
        if bank is not None:
            form = frozen_form(config, model)
            hooks = (FrozenIndex(bank.version), *hooks)

        def export(weights: Weights) -> None:
            if bank is None:
                export_model(self.out / "encoder", model, weights, form)
            else:
                export_frozen(config, bank, model, weights)

        data = getattr(batches, "data", None)
        stated: dict[str, object] = {"training questions": len(data)} if data is not None else {}
        stated |= {**(facts or {}), **(evaluate.facts() if isinstance(evaluate, HeldOutScores) else {})}
        scores = dict if evaluate is None else partial(evaluate, model)
        return Method(
            model, self.master, batches, loss, export, encoder_card(form),
            evaluate=scores if held_out else None,
            hooks=hooks,
            facts={
                **stated,
                "held-out questions": len(held_out),
                "questions per step": batches.batch_size,
                "temperature": model.temperature,
                **({} if bank is None else {"passage encoder": "that of the index, unchanged"}),
            },
        )  # fmt: skip


def contrastive_batches(config: Any, data: ExampleTable, examples: Epochs | None = None) -> RetrieverBatches:
    """Batches of positives and hard negatives, as a `ContrastiveConfig` says; without `examples`, those of
    the whole run."""
    return RetrieverBatches(
        data, Epochs.of(config, len(data)) if examples is None else examples,
        hard_negatives=config.hard_negatives, mask_false_negatives=config.mask_false_negatives,
    )  # fmt: skip


def encoder_card(form: EncoderSettings) -> Card:
    """The model card of a bi-encoder that lays texts out in this form."""
    return Card("retrievers.training", "bi_encoder.md", {"form": form, "is_pair": form.layout == PAIR})


def frozen_form(config: BiEncoderConfig, model: BiEncoderModel) -> EncoderSettings:
    """Text settings of an encoder whose passage vectors are an index's: those it was encoded with."""
    return replace(encoder_form(config, model), max_length=config.passage_tokens)


def export_frozen(
    config: BiEncoderConfig, index: Index, model: BiEncoderModel, weights: Mapping[str, Tensor]
) -> None:
    """Write `encoder/`, and its index `index/` unless it exists already.

    Args:
        config: as `adopt_index` returns it.
        weights: of both towers.
    """
    folder = export_model(config.out / "encoder", model, weights, frozen_form(config, model))
    encoder, target = BiEncoder.load(folder), config.out / "index"
    if target.exists():
        if (target / MANIFEST_NAME).exists() and _identity(target) == encoder.identity:
            return
        shutil.rmtree(target)
    reissue_index(index.directory, target, encoder, seed=config.seed)
    encoder.close()


def examples_key(split: ExampleSplit, index: Index) -> str:
    """Fingerprint of the examples and of the passages whose rows are exchanged."""
    return fingerprint([split.key, index.manifest["passages"]])


def fixed_vectors(index: Index, examples: Iterable[Example]) -> dict[tuple[str, str], Tensor]:
    """The index's vectors of those passages in examples that it contains, by title and text."""
    texts = CorpusTexts(index.passages)
    listed = {c.passage.text: c.passage for example in examples for c in example.candidates}
    rows = np.unique([row for passage in listed.values() for row in texts.find(passage)]).astype(np.int64)
    vectors = torch.from_numpy(index.require_dense().embeddings.rows(rows))
    passages = index.passages.get_many(rows)
    return {(p.title, p.text): vector for p, vector in zip(passages, vectors, strict=True)}


def _identity(directory: Path) -> EncoderIdentity | None:
    with Index.open(directory, verify="none") as index:
        return index.encoder_identity
