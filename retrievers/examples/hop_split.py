"""Question sets as hops, kept in the run's folder and divided by question into training and held-out ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from indexers.gold import CorpusTexts
from indexers.index import Index
from rag.core.files import sha256_file
from rag.core.types import Passage, Question
from rag.data.questions import draw_sample, read_questions
from retrievers.examples.hops import PassageFinder, hop_examples
from retrievers.examples.records import write_training_examples
from retrievers.examples.split import ExampleSplit, split_examples

if TYPE_CHECKING:
    from retrievers.training.mdr import MdrTrainConfig

__all__ = ["split_hops"]

_MOST_EXAMPLES = 24  # of one question: four orders of six hops


def split_hops(config: MdrTrainConfig, folder: Path, index: Index | None) -> ExampleSplit:
    """The examples of `config.train_files`; all hops of a question are on the same side.

    Args:
        config: of the run; `train_questions` counts questions.
        folder: where the examples of all hops are kept.
        index: its passages stand for the gold passages; questions with one that is not there are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    find = None if index is None else _finder(index)
    version = "" if index is None else index.version
    files = _hop_file(config, config.train_files, folder, find, version)
    held_out = config.validation_file
    if held_out is not None:
        every = config.model_copy(update={"data": config.data.replaced(train_questions=0)})
        held_out = _hop_file(every, (held_out,), folder, find, version)
    most = config.data.validation_questions * _MOST_EXAMPLES
    data = config.data.replaced(train_questions=0, validation_questions=most)
    changed = {"train_files": (files,), "validation_file": held_out, "data": data}
    return split_examples(config.model_copy(update=changed), folder)


def _hop_file(
    config: MdrTrainConfig, files: tuple[Path, ...], folder: Path, find: PassageFinder | None, version: str
) -> Path:
    sums = [sha256_file(path) for path in files]
    said, seed = config.data, config.run.seed
    stated = json.dumps([sums, said.max_hops, said.train_questions, seed, version])
    path = folder / f"hops-{hashlib.sha256(stated.encode()).hexdigest()[:16]}.json"
    if not path.is_file():
        questions: Iterable[Question] = (  # ids are unique in a file
            replace(question, id=f"{number}:{question.id}")
            for number, file in enumerate(files)
            for question in read_questions(file)
        )
        if said.train_questions:
            questions = draw_sample(questions, said.train_questions, seed)
        write_training_examples(path, hop_examples(questions, max_hops=said.max_hops, find=find))
    return path


def _finder(index: Index) -> PassageFinder:
    texts = CorpusTexts(index.passages)

    def find(passage: Passage) -> Passage | None:
        rows = texts.find(passage) if passage.text else [index.passages.row_of(passage.id)]
        return None if not rows or rows[0] is None else index.passages[rows[0]]

    return find
