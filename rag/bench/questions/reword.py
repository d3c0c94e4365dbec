"""Reword human questions with a language model, and keep those that still ask for the same.

`python -m rag.bench.questions.reword write DATA RAW --writer openai:URL#MODEL` asks the model, with
`--concurrency` requests at a time, and goes on where a killed run stopped. `python -m
rag.bench.questions.reword keep DATA RAW KEPT` looks at what was written: the shipped reader must
find the known answer in the known passage, and the question's vector must stay near while its words
change.
"""

import gzip
import hashlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from cyclopts import run

from rag.adaptation.drafts import agrees, lines_around
from rag.adaptation.writing import Journal, map_ahead
from rag.core.files import atomic_write_text, records_of_journal
from rag.core.log import Progress
from rag.core.types import Passage, Query
from rag.data.files.rows import json_records
from rag.data.text import AnswerMatcher
from readers.llm.endpoint import Endpoint, endpoint_of
from readers.open import open_reader
from readers.protocols import ReadRequest
from readers.words import words
from retrievers.encoders.open import load_encoder

# Of each, the part set aside for training alone is read.
READING_SETS = (
    "doc2dial",
    "squadshifts_amazon",
    "squadshifts_reddit",
    "wikitablequestions",
    "qamr_wikinews",
)
SEED = 61
_QUESTION_WORDS = range(4, 31)
_ANSWER_WORDS = range(1, 31)
_REPLY_TOKENS = 50
_NEAREST = 0.6  # cosine of the vectors of both wordings
_MOST_KEPT = 0.8  # share of the original's words that the rewording still has

_TASK = (
    "Reword the question. Imagine a colleague who needs the same answer but has never seen the document and "
    "does not know its terms. Use everyday words, not the words of the question; the situation or goal may "
    "come first. Keep names, numbers and dates, and everything that the answer depends on. Reply with the "
    "new question only."
)
_EXAMPLES = (  # lines, question, answer, reworded
    (
        "The device enters standby after 20 minutes without input, unless the inactivity timer is disabled in "
        "the power menu.",
        "After what period of inactivity does the device enter standby?",
        "20 minutes",
        "If I don't touch it, how long until it goes to sleep?",
    ),
    (
        "Applicants must submit proof of residency, such as a utility bill, together with form DS-11.",
        "What documentation can serve as proof of residency?",
        "a utility bill",
        "I have to show them where I live. What can I bring along?",
    ),
    (
        "Nation: Norway; Gold: 14; Silver: 14; Bronze: 11",
        "how many gold medals were awarded to norway?",
        "14",
        "How often did the Norwegians come first?",
    ),
)


class Original(NamedTuple):
    """A human question with its answer, which begins at `start` of the passage's text."""

    id: str
    set: str
    question: str
    answer: str
    start: int
    passage: Passage


def originals(data: Path) -> Iterator[Original]:
    """The questions of the sets, one of each in turn, in a random order that is always the same."""
    sets: list[list[Original]] = []
    for name in READING_SETS:
        sets.append(list(_of_reading(data / "reading" / name / "train.jsonl.gz", name)))
    sets.append(list(_of_squad(data / "squad" / "train-v1.1.json.gz")))
    sets.append(list(_of_nq(data / "nq" / "train.jsonl.gz")))
    for number, questions in enumerate(sets):
        random.Random(f"{SEED}:{number}").shuffle(questions)
    for original in chain.from_iterable(zip_longest(*sets)):
        if original is None or len(original.answer.split()) not in _ANSWER_WORDS:
            continue
        if len(original.question.split()) in _QUESTION_WORDS:
            yield original


def _of_reading(file: Path, name: str) -> Iterator[Original]:
    for row in json_records(file):
        passage = Passage("", row["title"], row["context"])
        for answer in row["answers"][:1]:
            text = answer["text"]
            yield Original(row["id"], name, row["question"], text, answer["start"], passage)


def _of_squad(file: Path) -> Iterator[Original]:
    for article in json.loads(gzip.decompress(file.read_bytes()))["data"]:
        for paragraph in article["paragraphs"]:
            passage = Passage("", "", paragraph["context"])
            for item in paragraph["qas"]:
                answer = item["answers"][0]
                text = answer["text"]
                start = answer["answer_start"]
                yield Original(item["id"], "squad", item["question"], text, start, passage)


def _of_nq(file: Path) -> Iterator[Original]:
    """NQ's questions have no ids: these are made of their texts."""
    for row in json_records(file):
        gold = row["positive_ctxs"][0]
        passage = Passage("", gold["title"], gold["text"])
        digest = hashlib.sha256(row["question"].encode()).hexdigest()[:16]
        for answer in row["answers"]:
            start = passage.text.find(answer)
            if start >= 0:
                yield Original(f"nq-{digest}", "nq", row["question"], answer, start, passage)
                break


def messages(original: Original) -> list[dict[str, str]]:
    """The chat that asks for a rewording; all begin alike, so that a server computes that once."""
    chat = [{"role": "system", "content": _TASK}]
    for lines, question, answer, reworded in _EXAMPLES:
        chat.append({"role": "user", "content": _request(lines, question, answer)})
        chat.append({"role": "assistant", "content": reworded})
    lines = lines_around(original.passage.text, original.start, original.answer)
    request = _request(lines, original.question, original.answer)
    return [*chat, {"role": "user", "content": request}]


def _request(lines: str, question: str, answer: str) -> str:
    return f"Passage: {lines}\nQuestion: {question}\nAnswer: {answer}"


def write(
    data: Path,
    raw: Path,
    model: Endpoint,
    *,
    minutes: float,
    concurrency: int = 1,
) -> int:
    """Reword questions until the minutes are over; returns how many there are now.

    Records are written in the order of the questions, whichever is reworded first, so a killed run
    leaves no gap.
    """
    with closing(Journal(raw)) as journal:
        done = {record["id"] for record in journal.records}

        def unwritten() -> Iterator[Original]:
            until = time.monotonic() + 60 * minutes
            for original in originals(data):
                if original.id not in done:
                    if time.monotonic() > until:
                        return
                    yield original

        def ask(original: Original) -> str:
            return model.complete(messages(original), _REPLY_TOKENS).text

        with Progress(None, "questions", "reword", initial=len(done)) as progress:
            for original, reply in map_ahead(ask, unwritten(), concurrency):
                question = reply.result().strip().partition("\n")[0]
                journal.append({"id": original.id, "set": original.set, "question": question})
                progress.update()
        return len(journal.records)


def keep(data: Path, raw: Path, kept: Path) -> Counter[str]:
    """Write the rewordings that still ask for the same; returns how many fail for which reason.

    What is kept names its original by the id, and quotes no passage.
    """
    written = {str(record["id"]): record for record in records_of_journal(raw)}
    before = [original for original in originals(data) if original.id in written]
    texts = [str(written[original.id]["question"]) for original in before]
    encoder = load_encoder()
    vectors = encoder.encode_queries([Query(original.question) for original in before])
    reworded = encoder.encode_queries(list(map(Query, texts)))
    nearness = np.einsum("nd,nd->n", vectors, reworded)
    reader = open_reader(None)
    counts = Counter[str]()
    lines = ""
    for original, text, near in zip(before, texts, nearness.tolist(), strict=True):
        reason = fault_of_rewording(original, text, near)
        if not reason:
            [answers] = reader.read([ReadRequest.of(text, [original.passage])], 1)
            reason = "" if agrees(answers, original.answer) else "the reader finds another answer"
        counts[f"{original.set}: {reason or 'kept'}"] += 1
        if not reason:
            lines += json.dumps(written[original.id], ensure_ascii=False) + "\n"
    atomic_write_text(kept, lines)
    return counts


def fault_of_rewording(original: Original, text: str, near: float) -> str:
    """Why a text asks for something else or says nothing anew; "" if neither."""
    if "?" not in text:
        return "no question"
    if near < _NEAREST:
        return "another meaning"
    before = _long_words(original.question)
    if len(before & _long_words(text)) > _MOST_KEPT * len(before):
        return "the same words"
    matcher = AnswerMatcher([original.answer])
    if matcher.matches(text) and not matcher.matches(original.question):
        return "answer in the question"
    return ""


def _long_words(text: str) -> set[str]:
    return {word for word in words(text) if len(word) > 3}


def main(
    step: Literal["write", "keep"],
    data: Path,
    raw: Path,
    kept: Path | None = None,
    /,
    *,
    writer: str | None = None,
    minutes: float = 20,
    concurrency: int = 1,
) -> None:
    """Run one of the two steps.

    Args:
        step: What is done.
        data: Folder of the question sets.
        raw: File of what the model wrote.
        kept: File of the questions that are kept, only of `keep`.
        writer: Language model, as openai:BASE_URL#MODEL, only of `write`.
        minutes: Time to write.
        concurrency: Requests in flight.
    """
    if step == "write" and writer:
        count = write(data, raw, endpoint_of(writer), minutes=minutes, concurrency=concurrency)
        print(f"{count:,} reworded")
    elif step == "keep" and kept:
        for reason, count in sorted(keep(data, raw, kept).items()):
            print(f"{count:,} {reason}")
    else:
        sys.exit("error: write needs --writer, keep needs KEPT")


if __name__ == "__main__":
    run(main)
