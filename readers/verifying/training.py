r"""Train verifiers, which say whether texts support or refute a claim.

    L = −(1/R) Σ_i log p(y_i | claim_i, evidence_i)

with p the softmax over supported, refuted and not enough. In sets with two labels "not supported"
is the sum of the other two, so that these rows train the margin of the two:

    p(not supported) = p(refuted) + p(not enough)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rag.core.arrays import Int64
from rag.core.errors import DataError
from rag.core.types import VERDICT_LABELS
from rag.data.claims import read_claims
from rag.data.selection import hold_out
from rag.runtime.backbone import plan_batches
from rag.runtime.hardware import resolve_precision
from rag.runtime.seeds import Stream, generator
from rag.training.card import Card
from rag.training.distributed import World
from rag.training.fit import Loss, Method
from rag.training.precision import MasterWeights
from readers.manifest import Calibration
from readers.verifying.files import load_model, load_verifier_parts, save_verifier, start_model
from readers.verifying.model import VerdictModel
from readers.verifying.settings import Parts, VerifierTrainConfig

# "not_supported" joins the last two.
LABELS = {label: number for number, label in enumerate((*VERDICT_LABELS, "not_supported"))}
_CHARS_PER_TOKEN = 4.5
_POOL_PAIRS = 1024  # among which those of a batch are of similar length


class Pair(NamedTuple):
    """A claim beside its evidence as one text, with the number of its label in `LABELS`."""

    claim: str
    evidence: str
    label: int


class PairBatches:
    """The batches of a run: `self[step]` depends on pairs, settings and step alone.

    The shuffled pairs are cut into pools; each pool is cut into batches of similar length, of about
    `tokens_per_batch` tokens, and these are shuffled.
    """

    def __init__(self, pairs: Sequence[Pair], config: VerifierTrainConfig) -> None:
        self._pairs = pairs
        self._plan: list[Int64] = []
        draw = generator(config.seed, Stream.PAIRS)
        chars = np.array([len(pair.claim) + len(pair.evidence) for pair in pairs])
        lengths = np.minimum(chars / _CHARS_PER_TOKEN, config.max_tokens).astype(int)
        count = max(1, round(config.epochs * len(pairs)))
        passes = [draw.permutation(len(pairs)) for _ in range(-(-count // len(pairs)))]
        order = np.concatenate(passes)[:count]
        for first in range(0, count, _POOL_PAIRS):
            pool = order[first : first + _POOL_PAIRS]
            batches = plan_batches(
                lengths[pool].tolist(), max_rows=len(pool), max_tokens=config.tokens_per_batch
            )
            self._plan += [pool[batches[number]] for number in draw.permutation(len(batches))]
        self._plan = self._plan[: config.max_batches]

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, step: int) -> list[Pair]:
        return [self._pairs[number] for number in self._plan[step]]


def build(config: VerifierTrainConfig, world: World) -> Method:
    """The method of `rag train verifier`.

    Source:
        Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval",
        section 4.3 (evidence concatenated, three labels).
    """
    # data
    pairs, held_out = _read_pairs(config)
    watched = held_out[: config.validation_claims]

    # model
    model = start_model(config)
    teacher = None
    if config.teacher is not None:
        teacher = load_model(None if config.teacher == "shipped" else config.teacher)
        teacher.to(world.device).to_compute(resolve_precision(config.precision, world.device))
    master = MasterWeights(model.to(world.device), config.precision)
    return Method(
        model,
        master,
        PairBatches(pairs, config),
        partial(verifier_loss, model, config=config, teacher=teacher),
        partial(_export, config, model, held_out),
        Card("readers.verifying", "verifier.md"),
        evaluate=partial(measure, model, watched) if watched else None,
        facts={"claims": len(pairs), "held-out claims": len(held_out)},
    )


def _read_pairs(config: VerifierTrainConfig) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from and held-out ones, which share no evidence, both in random order."""
    pairs = []
    for file in config.train_files:
        for claim in read_claims(file):
            if claim.label is None or not claim.evidence:
                raise DataError(
                    f"{file}: the claim {claim.id} has no label or no evidence to learn from",
                    hint="give each claim a `label` and its `evidence`, a list of texts",
                )
            pairs.append(Pair(claim.text, " ".join(claim.evidence), LABELS[claim.label]))
    draw = generator(config.seed, Stream.CLAIMS)
    pairs = [pairs[number] for number in draw.permutation(len(pairs))]
    learnt, held_out = hold_out(pairs, config.held_out, config.seed, lambda pair: pair.evidence)
    learnt += _exchanged(learnt, config.exchanged, draw)
    held_out += _exchanged(held_out, config.exchanged, draw)
    held_out = [held_out[number] for number in draw.permutation(len(held_out))]
    return (
        [_part(pair, config.parts) for pair in learnt],
        [_part(pair, config.parts) for pair in held_out],
    )


def _part(pair: Pair, parts: Parts) -> Pair:
    """What a network reads of a pair."""
    if parts == "both":
        return pair
    return pair._replace(evidence="") if parts == "claim" else pair._replace(claim="")


def _exchanged(pairs: Sequence[Pair], share: float, draw: np.random.Generator) -> list[Pair]:
    """Some of the claims with the evidence of others."""
    made = []
    for number in draw.permutation(len(pairs))[: round(share * len(pairs))].tolist():
        other = pairs[int(draw.integers(len(pairs)))]
        if other.evidence != pairs[number].evidence:
            made.append(Pair(pairs[number].claim, other.evidence, LABELS["not_enough"]))
    return made


def log_likelihoods(logits: Tensor, labels: Tensor) -> Tensor:
    """log p of each label (R,), from logits (R, 3); see the module.

    Args:
        labels: (R,) int64 numbers of `LABELS`.

    Example:
        >>> log_likelihoods(torch.zeros(2, 3), torch.tensor([0, 3])).exp()
        tensor([0.3333, 0.6667])
    """
    scores = functional.log_softmax(logits, -1)
    not_supported = scores[:, 1:].logsumexp(-1, keepdim=True)
    return torch.cat([scores, not_supported], -1).gather(1, labels[:, None])[:, 0]


def _read(model: VerdictModel, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor, int]:
    """Logits (R, 3), labels (R,), and the tokens read."""
    claims = [pair.claim for pair in pairs]
    evidence = [pair.evidence for pair in pairs]
    logits, tokens = model.logits(claims, evidence)
    return logits, torch.tensor([pair.label for pair in pairs], device=logits.device), tokens


def verifier_loss(
    model: VerdictModel,
    batch: Sequence[Pair],
    config: VerifierTrainConfig,
    teacher: VerdictModel | None = None,
) -> Loss:
    """Forward pass and loss of the labels, and of a teacher's distributions."""
    logits, labels, tokens = _read(model, batch)
    value = -log_likelihoods(logits, labels).mean()
    if teacher is None:
        return Loss(value, len(batch), tokens)
    with torch.no_grad():
        taught, _, _ = _read(teacher, batch)
    of_teacher = config.temperature**2 * functional.kl_div(
        functional.log_softmax(logits / config.temperature, -1),
        functional.softmax(taught / config.temperature, -1),
        reduction="batchmean",
    )
    figures = {"label_loss": value, "teacher_loss": of_teacher}
    return Loss(value.lerp(of_teacher, config.teacher_weight), len(batch), tokens, parts=figures)


@torch.no_grad()
def measure(model: VerdictModel, pairs: Sequence[Pair]) -> Mapping[str, float]:
    """{"accuracy", "nll"}, the first in percent; where a label stands for two, either is right."""
    model.eval()
    logits, labels, _ = _read(model, pairs)
    return _figures(logits, labels)


def _figures(logits: Tensor, labels: Tensor) -> Mapping[str, float]:
    predicted = logits.argmax(-1)
    is_right = torch.where(labels == LABELS["not_supported"], predicted > 0, predicted == labels)
    return {
        "accuracy": 100 * float(is_right.float().mean()),
        "nll": -float(log_likelihoods(logits, labels).mean()),
    }


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature that makes the labels likeliest.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2.
    """
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        scaled = logits / float(np.exp(log_temperature))
        return -float(log_likelihoods(scaled, labels).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-2.0, 3.0), method="bounded").x))


@torch.no_grad()
def _export(
    config: VerifierTrainConfig,
    model: VerdictModel,
    held_out: Sequence[Pair],
    weights: Mapping[str, Tensor],
) -> Mapping[str, float] | None:
    """Write `verifier/`, with the temperature fitted on what is read back; its figures at that
    temperature.
    """
    folder = config.out / "verifier"
    save_verifier(folder, model, weights, name=config.name, rank=config.rank)
    if not held_out:
        return None
    parts = load_verifier_parts(folder)
    stored = parts.model()
    logits, labels, _ = _read(stored, held_out)
    temperature = fit_temperature(logits, labels)
    calibration = Calibration(temperature=temperature, questions=len(held_out))
    parts.manifest.replaced(calibration=calibration).save(folder)
    figures = _figures(logits / temperature, labels)
    return {**figures, "temperature": temperature}
