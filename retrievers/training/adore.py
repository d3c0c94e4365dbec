"""Train the question encoder alone, against a frozen index (ADORE): the recipe, top to bottom."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from indexers.index import Index
from indexers.protocols import EncoderIdentity, IntArray
from indexers.reissue import reissue_index
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.log import get_logger
from rag.core.manifest import MANIFEST_NAME
from rag.training.distributed import World
from rag.training.fit import FitHooks, Loss, fit
from retrievers.encoders.bi_encoder import TOWER_SEPARATOR, BiEncoder
from retrievers.examples.batches import Epochs
from retrievers.examples.records import TrainingExample
from retrievers.examples.split import split_examples
from retrievers.examples.tokens import Int32, RetrieverTokenizer, TokenTable
from retrievers.training.ance_config import AdoreTrainConfig
from retrievers.training.config import RetrieverTrainConfig
from retrievers.training.losses import ranknet_loss
from retrievers.training.recipe import claimed
from retrievers.training.run import (
    encoder_form,
    finish_run,
    load_model,
)
from retrievers.training.validation import TOP_KS, CorpusSearch, right_rows

__all__ = [
    "AdoreBatch",
    "AdoreBatches",
    "FrozenIndex",
    "candidates",
    "like_index",
    "reissue",
    "train_adore",
]

ConfigT = TypeVar("ConfigT", bound=RetrieverTrainConfig)

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AdoreBatch:
    """B questions as token ids, and the rows of the index that are right for each."""

    questions: list[Int32]
    right: list[frozenset[int]]


class AdoreBatches:
    """The batches of a run by step.

    Args:
        questions: token ids of n questions.
        right: right rows of each.
        examples: which of them each batch holds.
    """

    def __init__(self, questions: TokenTable, right: Sequence[frozenset[int]], examples: Epochs) -> None:
        self._questions, self._right, self._examples = questions, right, examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, step: int) -> AdoreBatch:
        chosen = self._examples[step].tolist()
        return AdoreBatch([self._questions[i] for i in chosen], [self._right[i] for i in chosen])


def candidates(
    found: IntArray, right: Sequence[frozenset[int]]
) -> tuple[IntArray, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The lists that are ranked: what was found, and where nothing right was found, what is right.

    Args:
        found: rows (B, K), -1 where nothing was found.
        right: right rows of each question.

    Returns:
        Rows (B, K + A), -1 in empty places, and which of them are right.

    Example:
        >>> rows, relevant = candidates(np.array([[4, 2], [3, 1]]), [frozenset({2}), frozenset({9})])
        >>> rows.tolist(), relevant.astype(int).tolist()
        ([[4, 2, -1], [3, 1, 9]], [[0, 1, 0], [0, 0, 1]])
    """
    missed = [
        () if own.intersection(row) else tuple(sorted(own))
        for row, own in zip(found.tolist(), right, strict=True)
    ]
    width = max(map(len, missed))
    rows = np.full((len(found), found.shape[1] + width), -1, np.int64)
    rows[:, : found.shape[1]] = found
    for question, added in enumerate(missed):
        rows[question, found.shape[1] : found.shape[1] + len(added)] = added
    relevant = [[row in own for row in listed] for listed, own in zip(rows.tolist(), right, strict=True)]
    return rows, np.array(relevant)


def train_adore(config: AdoreTrainConfig) -> Path:
    """Train the question encoder as `config` says, or resume the run that `config.out` holds.

    Every step searches the index with the question encoder as it is at that step, so negatives are never
    stale; passages are never encoded. Writes what `train_dpr` writes, and `index/`: the index for the trained
    encoder, without a copy of its vectors where the file system allows it.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`, with both towers.

    Raises:
        DataError: an input file is wrong, or no question has a positive in the index.
        ConfigError: the configuration cannot work, or several processes were started.
        MismatchedArtifactError: `config.out` holds a run with another configuration, or the index's encoder
            is not the one it was built with any more.

    Source:
        Zhan et al. 2021, "Optimizing Dense Retrieval Model Training with Hard Negatives", section 4.

    Note:
        Search is as exact as the index is: build it with index type flat or fp16 for the published recipe.
    """
    with claimed(config) as world, Index.open(config.index) as index:
        if world.size > 1:
            raise ConfigError(
                f"{world.size} processes were started, one is enough: only questions are encoded",
                hint="start it without torchrun",
            )
        return _train(like_index(config, index), world, index)


def like_index(config: ConfigT, index: Index) -> ConfigT:
    """The configuration with everything the index decides."""
    identity = index.encoder_identity
    if identity is None:
        raise ConfigError(f"{config.index} has no vectors", hint="build it with --retriever dense")
    index.check_encoder(BiEncoder.load_like(identity, precision="fp32").identity)
    passages, _, questions = identity.name.partition(TOWER_SEPARATOR)
    said = {
        "question_encoder": config.model.question_encoder or questions or passages,
        "passage_encoder": passages,
        "passage_tokens": identity.max_length,
        **{name: getattr(identity, name) for name in ("pooling", "normalize", "layout")},
        **{name: getattr(identity, name) for name in ("query_prefix", "passage_prefix")},
    }
    return config.model_copy(update={"model": config.model.replaced(**said)})


def _train(config: AdoreTrainConfig, world: World, index: Index) -> Path:
    assert index.embeddings is not None
    assert index.dense is not None
    vectors, search = index.embeddings, index.dense

    # model
    model, master = load_model(config, world.device, freeze_passages=True)
    tokenizer = RetrieverTokenizer(model.settings.question, model.settings.passage)

    # data
    split = split_examples(config, config.out / "data")
    examples, right = _answerable(list(split.training()), index)
    questions = TokenTable.of(tokenizer.questions([example.question for example in examples]))
    epochs = Epochs(
        len(questions),
        config.data.batch_size,
        epochs=config.optim.epochs,
        max_batches=config.optim.max_steps,
        seed=config.run.seed,
    )
    batches = AdoreBatches(questions, right, epochs)
    log.info(
        "%d questions to train on, %d held out, %d passages, %d batches of %d questions",
        *(len(examples), len(split.held_out), len(vectors), len(batches), epochs.batch_size),
    )

    # optimisation
    def compute_loss(module: torch.nn.Module, batch: AdoreBatch) -> Loss:
        encoded = model.encode_questions(batch.questions)  # (B, D)
        _, found = search.search(encoded.detach().float().cpu().numpy(), config.depth)  # (B, K)
        rows, relevant = candidates(found, batch.right)  # (B, K + A)
        distinct, places = np.unique(np.maximum(rows, 0), return_inverse=True)
        passages = torch.from_numpy(vectors.rows(distinct)).to(encoded.device)  # (U, D)
        chosen = torch.from_numpy(places.reshape(rows.shape)).to(encoded.device)
        scores = torch.einsum("bd,bkd->bk", encoded, passages[chosen]) * model.scale
        scores = scores.masked_fill(torch.from_numpy(rows < 0).to(encoded.device), float("-inf"))
        value = ranknet_loss(scores, torch.from_numpy(relevant).to(encoded.device), config.metric_cut)
        return Loss(value, examples=len(batch.questions), tokens=sum(map(len, batch.questions)))

    held_out = CorpusSearch(index.passages, split.held_out) if split.held_out else None
    asked = [np.array(ids, np.int32) for ids in tokenizer.questions([e.question for e in split.held_out])]

    @torch.no_grad()
    def evaluate(module: torch.nn.Module) -> Mapping[str, float]:
        assert held_out is not None
        model.eval()
        _, found = search.search(model.encode_questions(asked).float().cpu().numpy(), TOP_KS[-1])
        model.train()
        return held_out.judge(found)

    result = fit(
        model,
        master,
        batches,
        compute_loss,
        config.optim,
        config.run,
        config.out,
        evaluate=evaluate if held_out is not None else None,
        hooks=FrozenIndex(index.version),
        world=world,
    )

    # export: the passage tower in the numbers it came in
    described = {
        "training questions": len(examples),
        "held-out questions": len(split.held_out),
        "passages of the index": len(vectors),
        "files": ", ".join(path.name for path in config.train_files),
        "steps": result.chosen_step,
        "questions a step": epochs.batch_size,
        "passage encoder": "that of the index, unchanged",
    }
    plain = config.model_copy(update={"optim": config.optim.replaced(precision="fp32")})
    whole, _ = load_model(plain, "cpu", freeze_passages=True)
    form = replace(encoder_form(config, model), max_length=config.model.passage_tokens)
    finished = finish_run(config, model, result, form, described, exported=whole)
    reissue(config, finished)
    return finished


class FrozenIndex(FitHooks):
    """Which index is searched, in every record."""

    def __init__(self, version: str) -> None:
        self._version = version

    def log_fields(self, step: int) -> Mapping[str, Any]:
        """Its version; it has no age, because passages are encoded as they were."""
        return {"index_version": self._version}

    def extra_state(self) -> Mapping[str, Any]:
        """Its version."""
        return {"index_version": self._version}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Refuse to go on with another index."""
        if state["index_version"] != self._version:
            raise MismatchedArtifactError(
                f"the run was started against index version {state['index_version']}, this one is "
                f"{self._version}",
                hint="give the same index, or choose another --out",
            )


def _answerable(
    examples: list[TrainingExample], index: Index
) -> tuple[list[TrainingExample], list[frozenset[int]]]:
    """The examples that have a positive in the index, and its rows."""
    rows = right_rows(index.passages, examples)
    kept = [(example, own) for example, own in zip(examples, rows, strict=True) if own]
    if not kept:
        raise DataError(
            f"none of {len(examples)} training questions has a positive in {index.directory}",
            hint="index the passages the training file was made from (--split none keeps them whole)",
        )
    if len(kept) < len(examples):
        log.warning(
            "%d of %d training questions have no positive in the index and are left out",
            *(len(examples) - len(kept), len(examples)),
        )
    return [example for example, _ in kept], [own for _, own in kept]


def reissue(config: RetrieverTrainConfig, finished: Path) -> None:
    """The index for the trained encoder, made anew unless it is there already."""
    encoder = BiEncoder.load(finished)
    target = config.out / "index"
    if target.exists():
        if (target / MANIFEST_NAME).exists() and _identity(target) == encoder.identity:
            return
        shutil.rmtree(target)
    assert config.index is not None
    reissue_index(config.index, target, encoder, seed=config.run.seed)
    encoder.close()


def _identity(directory: Path) -> EncoderIdentity | None:
    with Index.open(directory, verify="none") as index:
        return index.encoder_identity
