r"""Train cross-encoders, which read question and passage together and re-rank the hits of a search.

    L = −(1/B) Σ_q log( exp s(q, p⁺) / Σ_{p ∈ {p⁺} ∪ N(q)} exp s(q, p) )

with s the logit of the pair and N(q) drawn from the question's hard negatives: the wrong passages
that a first stage ranks high, as the finished model will meet them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from rag.core.errors import DataError
from rag.core.files import atomic_path
from rag.core.types import Passage
from rag.data.examples import Example
from rag.runtime.model_files import save_tokenizer
from rag.runtime.seeds import Stream, generator
from rag.training.card import Card
from rag.training.distributed import World
from rag.training.fit import Loss, Method
from rag.training.precision import MasterWeights
from retrievers.encoders.cross_encoder import CrossEncoder
from retrievers.examples.batches import Epochs
from retrievers.examples.data import split_examples
from retrievers.training.config import RerankerTrainConfig

_LENGTH = 512  # tokens of a pair that every finished model reads
Group = tuple[str, list[Passage]]
"""A question and passages, the positive first."""


@dataclass(frozen=True, slots=True)
class GroupBatches:
    """The batches of a run: `self[step]` depends on the fields and the step alone."""

    examples: Sequence[Example]
    epochs: Epochs
    hard_negatives: int

    def __len__(self) -> int:
        return len(self.epochs)

    def __getitem__(self, step: int) -> list[Group]:
        groups = []
        for number in self.epochs[step].tolist():
            example = self.examples[number]
            draw = generator(self.epochs.seed, Stream.NEGATIVES, step, number)
            positive = example.positives[int(draw.integers(len(example.positives)))]
            count = min(self.hard_negatives, len(example.negatives))
            drawn = np.sort(draw.choice(len(example.negatives), count, replace=False))
            negatives = [example.negatives[drawn_number].passage for drawn_number in drawn.tolist()]
            groups.append((example.question, [positive, *negatives]))
        return groups


def build(config: RerankerTrainConfig, world: World) -> Method:
    """The method of `rag train reranker`. The finished model, `cross-encoder/`, is a
    sequence-classification model of transformers with one output, for `--rerank` and `rag score`.

    Source:
        Gao, Dai and Callan 2021, "Rethink Training of BERT Rerankers in Multi-Stage Retrieval
        Pipeline", equation 4 (localised contrastive estimation); Nogueira and Cho 2019, "Passage
        Re-ranking with BERT".
    """
    # data
    split = split_examples(config, config.out / "data")
    examples = _with_negatives(split.training, config.depth)
    held_out = _with_negatives(split.held_out, config.depth)
    if not examples or (config.validates and not held_out):
        raise DataError(
            f"of {len(split.training)} questions {len(examples)} have hard negatives to learn from, of "
            f"{len(split.held_out)} held-out ones {len(held_out)}",
            hint="mine some: rag mine --index INDEX --questions FILE --out mined.json",
        )
    epochs = Epochs.of(config, len(examples))

    # model
    model = CrossEncoder.load(
        config.question_encoder,
        device=world.device,
        max_length=config.passage_tokens,
        layout=config.layout,
        train=True,
        dropout=config.dropout,
        seed=config.seed,
    )
    network = _named_parts(model.network.to(world.device))
    return Method(
        network,
        MasterWeights(network, config.precision),
        GroupBatches(examples, epochs, config.hard_negatives),
        partial(_step, model),
        export=partial(_export, config.out / "cross-encoder", model, network),
        card=Card("retrievers.training", "reranker.md"),
        evaluate=partial(_measure, model, held_out) if held_out else None,
        facts={
            "questions with hard negatives": len(examples),
            "held-out questions": len(held_out),
            "questions per step": epochs.batch_size,
        },
        makes_ahead=True,
    )


def _named_parts(network: Any) -> torch.nn.ModuleDict:
    """The network as `head` (with the pooler, if the encoder has one) and `encoder`, in any
    architecture.
    """
    encoder = network.base_model
    head = [child for child in network.children() if child is not encoder]
    if getattr(encoder, "pooler", None) is not None:
        head.append(encoder.pooler)
    return torch.nn.ModuleDict({"head": torch.nn.ModuleList(head), "encoder": encoder})


def list_loss(scores: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """−Σ log softmax of the first score of each run; see the module.

    Args:
        scores: (P,) floating, the questions' passages one after the other, each question's positive
            first.
        sizes: number of passages of each question, P in total.

    Example:
        >>> round(float(list_loss(torch.zeros(5), [2, 3])), 4)  # ln 2 + ln 3
        1.7918
    """
    lists = list(scores.split(list(sizes)))
    rows = pad_sequence(lists, batch_first=True, padding_value=float("-inf"))
    first = rows.new_zeros(len(rows), dtype=torch.long)
    return functional.cross_entropy(rows, first, reduction="sum")


def _with_negatives(examples: Iterable[Example], depth: int) -> list[Example]:
    """Of the examples with hard negatives the part to keep in memory: their first ones."""
    cut = []
    for example in examples:
        negatives = example.negatives[:depth]
        if negatives:
            cut.append(
                Example.labelled(example.id, example.question, (), example.positives, negatives)
            )
    return cut


def _step(model: CrossEncoder, batch: Sequence[Group]) -> Loss:
    questions: list[str] = []
    passages: list[Passage] = []
    for question, group in batch:
        questions += [question] * len(group)
        passages += group
    scores, tokens = model.logits(questions, passages)
    value = list_loss(scores, [len(group) for _, group in batch]) / len(batch)
    return Loss(value, len(batch), tokens)


@torch.no_grad()
def _measure(model: CrossEncoder, held_out: Sequence[Example]) -> Mapping[str, float]:
    """{"nll", "list_mrr", "list_top1"}, the last two in percent: the best positive among its
    list.
    """
    model.network.eval()
    loss = 0.0
    ranks = []
    for example in held_out:
        passages = example.passages  # the positives first
        scores = model.logits([example.question] * len(passages), passages)[0].float()
        best = scores[: len(example.positives)]
        others = scores[len(example.positives) :]
        ranks.append(1 + int((others >= best.max()).sum()))  # ties count against the positive
        loss += float(list_loss(torch.cat([best[:1], others]), [1 + len(others)]))
    count = len(held_out)
    return {
        "nll": loss / count,
        "list_mrr": 100 * sum(1 / rank for rank in ranks) / count,
        "list_top1": 100 * sum(rank == 1 for rank in ranks) / count,
    }


def _export(
    folder: Path,
    model: CrossEncoder,
    parts: torch.nn.ModuleDict,
    weights: Mapping[str, torch.Tensor],
) -> None:
    parts.float().load_state_dict(dict(weights), strict=False)
    # what a longer pair means was not trained
    longest = max(_LENGTH, model.max_length)
    model.tokenizer.model_max_length = min(model.tokenizer.model_max_length, longest)
    with atomic_path(folder, folder=True) as temporary:
        model.network.save_pretrained(temporary)
        save_tokenizer(model.tokenizer, temporary)
