"""After the last step: the fp32 checkpoint as a folder, and its figures on held-out questions."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from rag.core.files import replaced_folder
from rag.data.examples import Example
from rag.data.text import Profile
from rag.metrics.answers import em_and_f1
from rag.runtime.model_files import save_tokenizer
from rag.training.card import Card
from readers.generative.model import Seq2Seq
from readers.generative.reader import GenerativeReader
from readers.generative.settings import GeneratorManifest, GeneratorSettings
from readers.generative.training.data import best_ranked
from readers.ranking import Ranked

_CHUNK = 32


def answer_scores(
    read: Sequence[Ranked], answers: Sequence[Sequence[str]], profiles: Sequence[Profile] = ()
) -> dict[str, float]:
    """{"em", "f1", "silent"} in percent; "silent" is the share of questions left without an answer.

    Without beams a reader is silent wherever "no answer" is likelier than each single answer.

    Args:
        answers: (n,) accepted answers of each question.
        profiles: (n,) rules by which answers are compared, "squad" by default. Patterns have no F1.
    """
    texts = [question.answers[0].text if question.answers else None for question in read]
    rules: Sequence[Profile] = profiles or ["squad"] * len(texts)
    em, f1 = zip(*map(em_and_f1, texts, answers, rules), strict=True)
    overlaps = [overlap for overlap in f1 if not np.isnan(overlap)] or [0.0]
    shares = {"em": np.mean(em), "f1": np.mean(overlaps), "silent": texts.count(None) / len(texts)}
    return {name: round(100 * float(share), 2) for name, share in shares.items()}


def reading_scores(reader: GenerativeReader, examples: Sequence[Example], passages: int) -> dict[str, float]:
    """`answer_scores` of a reader that reads the best-ranked passages of held-out questions."""
    read: list[Ranked] = []
    for begin in range(0, len(examples), _CHUNK):
        part = examples[begin : begin + _CHUNK]
        chosen = [[c.passage for c in best_ranked(example, passages)] for example in part]
        ranks = [[-float(rank) for rank in range(len(mine))] for mine in chosen]
        read += reader.generate([e.question for e in part], chosen, ranks)
    return answer_scores(read, [example.answers for example in examples])


@torch.no_grad()
def set_weights(
    seq2seq: Seq2Seq, weights: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None
) -> None:
    """Give the model these weights, rounded to `dtype` or else its own, and end its training."""
    parameters = dict(seq2seq.model.to(dtype).named_parameters())
    for name, tensor in weights.items():
        parameters[name].copy_(tensor)
    seq2seq.model.eval()


def save_reader(
    folder: Path,
    seq2seq: Seq2Seq,
    weights: Mapping[str, torch.Tensor],
    manifest: GeneratorManifest,
    *,
    add: Callable[[Path], object] = lambda _: None,
) -> None:
    """Write a folder that transformers opens, with `reader.json`, atomically; one that exists is replaced.

    The model is converted to fp32 and gets `weights`; `add` writes further files before the end.
    """
    model = seq2seq.model.float()
    set_weights(seq2seq, weights)
    with replaced_folder(folder) as temporary:
        model.save_pretrained(temporary)
        save_tokenizer(seq2seq.tokenizer, temporary)
        manifest.save(temporary)
        add(temporary)


def reader_card(settings: GeneratorSettings) -> Card:
    """The model card of a reader with these settings."""
    return Card("readers.generative.training", "generator.md", {"reader": settings})
