"""Intermediate results of mining, one file per block of questions, from which a killed run
resumes.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from rag.core.files import atomic_write_json, clean_directory, read_json
from rag.core.log import Progress, get_logger
from rag.core.manifest import claim
from rag.data.examples import (
    Candidate,
    Example,
    Role,
    example_from_json,
    example_to_json,
    read_examples,
)
from rag.data.files.rows import json_records, write_json_lines

_RUN = "run.json"


class BlockFolder:
    """Finished blocks of a run: `block-000000.jsonl` with its counts, which are written last.

    Args:
        folder: made if it is not there.
        run: everything that decides the result: settings, index, questions.
    """

    def __init__(self, folder: Path, run: Mapping[str, Any]) -> None:
        self.folder = folder
        self.finished = 0
        clean_directory(folder)
        while self._file(self.finished, "counts.json").is_file():
            self.finished += 1
        if not self.finished:
            atomic_write_json(folder / _RUN, run)
        hint = f"repeat that run's command to finish it, or delete {folder} to begin anew"
        claim(folder / _RUN, run, "blocks of an unfinished run with other settings", hint=hint)

    def _file(self, number: int, ending: str) -> Path:
        return self.folder / f"block-{number:06d}.{ending}"

    def fill(
        self,
        items: Iterable[object],
        make: Callable[..., Iterable[Example]],
        *,
        total: int,
        size: int,
        verb: str,
    ) -> None:
        """Write the blocks that are missing: `make` gets a block's items, and `counts` to add to.

        Args:
            items: for all questions, `total` in number, `size` per block.
            verb: what is done with them, such as "mine", for messages.
        """
        done = min(total, self.finished * size)
        if done:
            get_logger(__name__).info("%s: %d questions are done already", self.folder, done)
        todo = islice(items, done, None)
        with Progress(total, "questions", verb, initial=done) as progress:
            while block := list(islice(todo, size)):
                counts: Counter[str] = Counter()
                examples = make(block, counts=counts)
                write_json_lines(self._file(self.finished, "jsonl"), map(example_to_json, examples))
                atomic_write_json(self._file(self.finished, "counts.json"), counts)
                self.finished += 1
                progress.update(len(block))

    def counts(self) -> Counter[str]:
        """Counts of all blocks together."""
        total: Counter[str] = Counter()
        for number in range(self.finished):
            total.update(read_json(self._file(number, "counts.json")))
        return total

    def examples(self) -> Iterator[Example]:
        """All examples, in order."""
        for number in range(self.finished):
            if self._file(number, "jsonl").stat().st_size:
                for record in json_records(self._file(number, "jsonl")):
                    yield example_from_json(record, "")

    def remove(self) -> None:
        """Delete the folder, last block first, so that an interrupted deletion leaves a valid
        run.
        """
        for number in reversed(range(self.finished)):
            self._file(number, "counts.json").unlink()
        shutil.rmtree(self.folder)


def merge_examples(mined: Iterable[Example], other: str | Path) -> Iterator[Example]:
    """The union of two training sets, by question text; the other one is held in memory.

    Positives and negatives of a question in both are put together, the mined ones first, each
    passage once, and no positive of either is left among the negatives. Questions of `other` alone
    follow at the end.

    Source: Karpukhin et al.'s second round (`biencoder-nq-adv-hn-train`): trained on first and
        mined negatives together.
    """
    rest: dict[str, list[Example]] = {}
    for example in read_examples(other):
        rest.setdefault(_key(example), []).append(example)
    for example in mined:
        yield _union([example, *rest.pop(_key(example), [])])
    yield from map(_union, rest.values())


def _key(example: Example) -> str:
    texts = [example.question, *(passage.text for passage in example.context)]
    return " ".join(" ".join(texts).lower().split())


def _union(same: Sequence[Example]) -> Example:
    if len(same) == 1:
        return same[0]
    candidates: dict[tuple[str, str], Candidate] = {}
    roles: tuple[Role, ...] = ("positive", "hard_negative", "negative", "retrieved")
    for role in roles:  # best first: of its roles a passage has the first
        for example in same:
            for candidate in example.of_role(role):
                passage = candidate.passage
                candidates.setdefault(passage.content, candidate)
    answers: dict[str, None] = {}
    for example in same:
        answers.update(dict.fromkeys(example.answers))
    return replace(same[0], answers=tuple(answers), candidates=tuple(candidates.values()))
