r"""A teacher reader's distributions over spans, "not here" and passages: computed once, kept as files.

The teacher, any extractive reader, reads whole passages. Its logits are kept with the characters of each
token, so that they fit a student with another tokenizer and any window of the passage:

- The mass exp(logit) of a token as a start goes to the student's token that holds its first character, as an
  end to the one that holds its last; masses that meet add up. Equal tokenizers keep every logit.
- The masses of the windows of a long passage add up, as windows share the softmax in the loss.
- The mass of tokens outside the student's window goes to [CLS], "the answer is not here".

In the folder, `teacher.json` names the teacher by its checksums and each `NNNNN.arrow` holds `_SHARD` pairs
of a question and a passage. A killed run loses one shard.

Source:
    Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network", section 2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import feather

from rag.core.arrays import Float32, Int32, Int64
from rag.core.files import atomic_path, hash64, sha256_file
from rag.core.manifest import claim
from rag.core.progress import Progress
from rag.core.types import Passage
from rag.runtime.model_files import model_folder
from rag.runtime.seeds import generator
from readers.extractive.files import SHIPPED_READER
from readers.extractive.inference import map_rows
from readers.extractive.layout import Row
from readers.extractive.model import Logits
from readers.extractive.reader import ExtractiveReader
from readers.extractive.training.config import ReaderTrainConfig
from readers.extractive.training.data import ReaderExamples, TrainingQuestion

_SHARD = 128  # pairs


@dataclass(frozen=True, slots=True)
class PairTarget:
    """The teacher's logits for one pair.

    Attributes:
        logits: (2, 1 + L) float32 of starts and of ends, at [CLS] and at the L tokens that the student has in
            the passage; −inf where the teacher has no token.
        heads: (3,) float32 logits of the passage, of "yes" and of "no"; NaN where the teacher has none.
    """

    logits: Float32
    heads: Float32

    def fill(self, row: Row, longest: int, out: Float32) -> None:
        """Write the logits at a row of the student into `out` (2, S), whose first `longest` are tokens."""
        first, stop = 1 + row.first_token, 1 + row.first_token + row.text_to - row.text_from
        unseen = np.concatenate([self.logits[:, :first], self.logits[:, stop:]], 1)  # and [CLS] itself
        out[:] = -np.inf
        out[:, 0] = np.logaddexp.reduce(unseen, 1)
        out[:, row.text_from : row.text_to] = self.logits[:, first:stop]
        out[:, longest:] = self.heads[1 : 1 + out.shape[1] - longest]


@dataclass(frozen=True, slots=True)
class TeacherTargets:
    """A teacher's logits for some training questions.

    Attributes:
        questions: numbers of these questions.
        pairs: logits by the question's number and the passage's place in its list.
    """

    questions: Int64
    pairs: Mapping[tuple[int, int], PairTarget]


def ask_teacher(config: ReaderTrainConfig, examples: ReaderExamples, device: str) -> TeacherTargets | None:
    """Read a teacher's logits from `config.out / "teacher"`, after computing those that are missing.

    The questions are one pass over the mixture of the sets, in random order, cut to `teacher_questions`; of
    each the teacher reads the passages that a batch may show.

    Returns:
        None if no teacher is configured.

    Raises:
        ArtifactError: there is no such reader.
        MismatchedArtifactError: the folder holds logits of another teacher.
    """
    source = config.teacher
    if source is None:
        return None
    place = SHIPPED_READER if source == "shipped" else model_folder(source)
    folder = config.out / "teacher"
    folder.mkdir(parents=True, exist_ok=True)
    identity = {file.name: sha256_file(file) for file in sorted(place.iterdir()) if file.is_file()}
    hint = "restore the teacher as it was, or choose another --out"
    claim(folder / "teacher.json", {"checksums": identity}, "logits of a teacher", hint=hint)
    draw, parts = generator(config.seed, 8), []
    sets = np.array([question.set for question in examples.questions])
    for number, one in enumerate(config.train):
        own = draw.permutation(np.flatnonzero(sets == number))
        parts.append(own[: round(one.weight * len(own))])
    questions = draw.permutation(np.concatenate(parts))[: config.teacher_questions]
    pairs = [(n, place) for n in questions.tolist() for place in _places(config, examples.questions[n])]
    passages = [examples.questions[n].passages[place] for n, place in pairs]
    shown = [
        (examples.questions[n].text, *examples.passage_texts[passage])
        for (n, _), passage in zip(pairs, passages, strict=True)
    ]
    reader: ExtractiveReader | None = None
    targets: dict[tuple[int, int], PairTarget] = {}
    with Progress(len(pairs), "passages", "teacher") as progress:
        for number, begin in enumerate(range(0, len(pairs), _SHARD)):
            part = slice(begin, begin + _SHARD)
            keys = [f"{hash64(chr(0).join(texts).encode()):016x}" for texts in shown[part]]
            file = folder / f"{number:05}.arrow"
            if (records := _read_shard(file, keys)) is None:
                if reader is None:
                    reader = ExtractiveReader.load(place, precision=config.precision, device=device)
                records = [
                    {"key": key, **record}
                    for key, record in zip(keys, _compute(reader, shown[part]), strict=True)
                ]
                with atomic_path(file) as temporary:
                    feather.write_feather(pa.Table.from_pylist(records), str(temporary))
            for pair, passage, record in zip(pairs[part], passages[part], records, strict=True):
                targets[pair] = _on_tokens(record, examples.texts.spans(passage))
            progress.update(len(records))
    return TeacherTargets(questions, targets)


def _places(config: ReaderTrainConfig, question: TrainingQuestion) -> list[int]:
    """The passages of a question that a batch may show: its first positives and negatives."""
    right = len(question.spans)
    positives = max(stage.positives for stage in config.stages)
    negatives = max(stage.negatives + (stage.no_answer_fraction > 0 or not right) for stage in config.stages)
    return [*range(min(right, positives)), *range(len(question.passages))[right : right + negatives]]


def _read_shard(file: Path, keys: Sequence[str]) -> list[dict[str, Any]] | None:
    """The records of a shard; None if there is none, or one of other pairs."""
    try:
        table = feather.read_table(str(file))
    except (OSError, pa.ArrowInvalid):
        return None
    return table.to_pylist() if table.column("key").to_pylist() == [*keys] else None


def _compute(reader: ExtractiveReader, shown: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """The teacher's logits for (question, title, text), at [CLS] and its own tokens."""
    passages = [[Passage("", title, text)] for _, title, text in shown]
    everything = reader.rows([question for question, _, _ in shown], passages)
    of_rows = [np.zeros((2, 0), np.float32)] * len(everything.rows)
    heads = np.full((len(of_rows), 3), np.nan, np.float32)

    def use(part: list[int], _: torch.Tensor, __: torch.Tensor, read: Logits) -> None:
        both = torch.stack([read.start, read.end], 1).float().cpu().numpy()  # (r, 2, L)
        for place, number in enumerate(part):
            of_rows[number] = both[place]
        if read.relevance is not None:
            heads[part, 0] = read.relevance.float().cpu().numpy()
        if read.words is not None:
            heads[part, 1:] = read.words.float().cpu().numpy()

    map_rows(reader.model, reader.layout, everything.rows, use, device=reader.device)
    offsets = [everything.texts.spans(unique) for _, _, unique in everything.pairs]
    logits = [np.full((2, 1 + len(own)), -np.inf, np.float32) for own in offsets]
    best = np.full((len(offsets), 3), np.nan, np.float32)
    for row, both, more in zip(everything.rows, of_rows, heads, strict=True):
        total, first = logits[row.group], 1 + row.first_token
        inside = total[:, first : first + row.text_to - row.text_from]
        np.logaddexp(inside, both[:, row.text_from : row.text_to], out=inside)
        total[:, 0] = np.logaddexp(total[:, 0], both[:, reader.layout.template.cls_position])
        best[row.group] = np.fmax(best[row.group], more)
    return [
        {"offsets": own.ravel(), "start": both[0], "end": both[1], "heads": more}
        for own, both, more in zip(offsets, logits, best, strict=True)
    ]


def _on_tokens(record: Mapping[str, Any], own: Int32) -> PairTarget:
    """A record's logits at the student's tokens, whose characters are `own` (L, 2); see the module."""
    offsets = np.array(record["offsets"], np.int64).reshape(-1, 2)
    logits = np.full((2, 1 + len(own)), -np.inf, np.float32)
    holding = (
        np.searchsorted(own[:, 1], offsets[:, 0], side="right"),
        np.searchsorted(own[:, 0], offsets[:, 1] - 1, side="right") - 1,
    )
    for side, values, tokens in zip(logits, (record["start"], record["end"]), holding, strict=True):
        side[0] = values[0]
        np.logaddexp.at(side, 1 + tokens.clip(0, len(own) - 1), np.array(values[1:], np.float32))
    return PairTarget(logits, np.array(record["heads"], np.float32))
