"""After the last step: the fp32 checkpoint as a folder, its ranking and confidence on held-out questions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from rag.core.files import replaced_folder
from rag.data.examples import Example
from rag.data.text import Profile, f1
from rag.metrics.answers import em_and_f1
from rag.metrics.calibration import measure_calibration
from rag.runtime.model_files import save_tokenizer
from rag.training.card import Card
from readers.calibration import fit_calibration
from readers.confidence import confidences
from readers.generative.model import Seq2Seq
from readers.generative.reader import GenerativeReader
from readers.generative.settings import GeneratorManifest, GeneratorSettings
from readers.generative.training.data import best_ranked
from readers.manifest import Calibration
from readers.ranking import Ranked

_CHUNK = 32
_RIGHT = 0.5  # F1 of an answer that counts as right


def read_examples_with(
    reader: GenerativeReader, examples: Sequence[Example], passages: int, *, silent: bool = False
) -> list[Ranked]:
    """A reader's answers from the best-ranked passages of held-out questions.

    Args:
        silent: leave out the passages that hold an answer.
    """
    found: list[Ranked] = []
    for begin in range(0, len(examples), _CHUNK):
        part = examples[begin : begin + _CHUNK]
        chosen = [
            [c.passage for c in best_ranked(example, passages) if not (silent and c.has_answer)]
            for example in part
        ]
        ranks = [[-float(rank) for rank in range(len(mine))] for mine in chosen]
        found += reader.generate([e.question for e in part], chosen, ranks)
    return found


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
    shares = {
        "em": np.mean(em),
        "f1": np.mean([one for one in f1 if not np.isnan(one)] or [0.0]),
        "silent": texts.count(None) / len(texts),
    }
    return {name: round(100 * float(share), 2) for name, share in shares.items()}


def calibrate(
    reader: GenerativeReader, examples: Sequence[Example], passages: int
) -> tuple[Calibration, dict[str, float]]:
    """Temperature and null bias on held-out questions, and the reader's figures on them.

    A reader that was trained to say "no answer" also sees every fourth question without the passages that
    hold one. A reader that was not keeps its raw probabilities.
    """
    read = read_examples_with(reader, examples, passages)
    figures = {
        **answer_scores(read, [example.answers for example in examples]),
        "questions": float(len(examples)),
    }
    if reader.settings.no_answer is None:
        return Calibration(), figures
    every = examples[::4]
    removed = zip(read_examples_with(reader, every, passages, silent=True), every, strict=True)
    pairs = [*zip(read, examples, strict=True), *((r, replace(e, answers=())) for r, e in removed)]
    pairs = [(question, example) for question, example in pairs if question.answers]
    if not pairs:
        return Calibration(), figures
    width = max(len(question.answers) for question, _ in pairs)
    scores, correct = np.full((len(pairs), width), -np.inf), np.zeros((len(pairs), width), bool)
    nulls = np.zeros(len(pairs))
    for row, (question, example) in enumerate(pairs):
        count = len(question.answers)
        scores[row, :count] = question.scores
        correct[row, :count] = [f1(c.text, example.answers) >= _RIGHT for c in question.answers]
        nulls[row] = -1e4 if question.null is None else question.null
    calibration = fit_calibration(scores, correct, nulls)
    chances = [confidences(question.scores, question.null, calibration)[0][0] for question, _ in pairs]
    measured = measure_calibration(chances, correct[:, 0])
    if measured is not None:
        figures["ece"] = round(measured.ece, 4)
    return calibration, figures


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
    """Write a folder that transformers opens, with `reader.json`, atomically.

    Args:
        folder: replaced if it exists.
        seq2seq: its model is converted to fp32 and gets `weights`.
        manifest: content of `reader.json`.
        add: writes further files into the folder before it is renamed.
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
