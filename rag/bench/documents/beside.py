"""Conversion beside other converters: time, and the share of the question set's answers that the text keeps.

`python -m rag.bench.documents.beside DOCUMENTS PYTHON [CONVERTER …]`, where PYTHON is that of an environment
with the other converters (markitdown, kreuzberg). The Markdown that these write is split into passages like
this system's text. Times are processor times.
"""

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rag.bench.common import interval_of
from rag.bench.documents import others
from rag.bench.report import Report, Table
from rag.core.errors import ConfigError, DataError, RagError
from rag.core.types import Passage, Question
from rag.data.documents.blocks import Converted, assemble
from rag.data.documents.convert import convert
from rag.data.documents.markdown import markdown
from rag.data.questions import read_questions
from rag.data.records import Document
from rag.data.split import SplitOptions, split_documents
from rag.data.text import simple_tokenize
from rag.metrics.ranking import answer_flags

QUESTIONS = Path(__file__).with_name("questions.jsonl")
ROUNDS = 1
_OURS = "openqa-rag"


def compare(documents: Path, python: str, names: Sequence[str]) -> Report:
    """Times and text quality of this package and of other converters.

    Raises:
        ConfigError: a converter does not run in the other Python.
        DataError: the folder lacks a document of the questions.
    """
    files = sorted(path for path in documents.rglob("*") if path.is_file())
    questions = [one for one in read_questions(QUESTIONS) if one.answers]
    if missing := {str(one.meta["document"]) for one in questions} - {_name(documents, it) for it in files}:
        raise DataError(
            f"{documents} lacks {min(missing)} and {len(missing) - 1} more", hint="fetch them first"
        )
    seconds: dict[str, dict[str, float]] = {}
    passages: dict[str, dict[str, list[Passage]]] = {}
    for converter in (_OURS, *names):
        found = _ours(files) if converter == _OURS else _theirs(files, converter, python)
        seconds[converter] = {_name(documents, path): took for path, (took, _) in found.items()}
        passages[converter] = {_name(documents, path): _cut(text) for path, (_, text) in found.items()}
    report = Report("conversion", {"files": len(files), "questions": len(questions), "rounds": ROUNDS})
    report.tables += [_times(seconds), _quality(questions, passages)]
    return report


def _name(documents: Path, path: Path) -> str:
    return path.relative_to(documents).as_posix()


def _ours(files: Iterable[Path]) -> dict[Path, tuple[float, Converted | None]]:
    converted: dict[str, Converted] = {}

    def run(path: str) -> str:
        converted[path] = convert(Path(path).read_bytes(), path)
        return ""

    rows = others.timed(run, map(str, files), ROUNDS)
    return {Path(path): (float(np.median(took)), converted.get(path)) for path, _, _, took in rows}


def _theirs(files: Sequence[Path], converter: str, python: str) -> dict[Path, tuple[float, Converted | None]]:
    command = [python, str(others.__file__), converter, str(ROUNDS)]
    done = subprocess.run(
        command, input="\n".join(map(str, files)), capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(f"{converter} does not run: {last}", hint=f"{python} -m pip install {converter}")
    found: dict[Path, tuple[float, Converted | None]] = {}
    for line in done.stdout.splitlines():
        path, text, error, took = json.loads(line)
        if error:
            print(f"{converter}: {path}: {error}", file=sys.stderr)
        found[Path(path)] = float(np.median(took)), _read(text)
    return found


def _read(text: str) -> Converted | None:
    try:
        return assemble(*markdown(text))
    except RagError:  # there is no text
        return None


def _cut(converted: Converted | None) -> list[Passage]:
    if converted is None:
        return []
    document = Document("d", converted.title, converted.text, blocks=converted.blocks)
    return list(split_documents([document], SplitOptions(mode="sections", max_tokens=256)))


def _times(seconds: Mapping[str, Mapping[str, float]]) -> Table:
    """Seconds for all files of a format, and those of the others divided by ours."""
    ours, formats = seconds[_OURS], sorted({name.split("/")[0] for name in seconds[_OURS]})
    rows = []
    for format in [*formats, "all"]:
        names = [name for name in ours if format in (name.split("/")[0], "all")]
        row = [format, str(len(names)), f"{sum(ours[name] for name in names):.2f}"]
        for converter in list(seconds)[1:]:
            theirs = seconds[converter]
            pairs = [ours[name] for name in names], [theirs[name] for name in names]
            ratio = interval_of(lambda x, y, axis: np.sum(y, axis) / np.sum(x, axis), *pairs)
            row += [f"{sum(pairs[1]):.2f}", f"{ratio:.3f}"]
        rows.append(row)
    columns = ["format", "files", f"{_OURS}, s"]
    for converter in list(seconds)[1:]:
        columns += [f"{converter}, s", "ratio"]
    return Table("processor seconds for all files; ratio of the sums", tuple(columns), rows)


def _quality(questions: Sequence[Question], passages: Mapping[str, Mapping[str, list[Passage]]]) -> Table:
    """Share of questions whose answer stands whole in a passage of its document, or in the likeliest."""
    measures: dict[str, Callable[[Question, list[Passage]], bool]] = {
        "answer in a passage": lambda question, found: _has(question, found),
        "in the likeliest five": lambda question, found: _has(question, _likeliest(question, found)[:5]),
        "in the likeliest": lambda question, found: _has(question, _likeliest(question, found)[:1]),
    }
    rows = []
    for converter, of_files in passages.items():
        pairs = [(one, of_files[str(one.meta["document"])]) for one in questions]
        shares = [
            interval_of(np.mean, [float(measure(*pair)) for pair in pairs]) for measure in measures.values()
        ]
        unread = sum(not found for found in of_files.values())
        count = sum(map(len, of_files.values()))
        rows.append([converter, str(unread), f"{count:,}", *(f"{share:.3f}" for share in shares)])
    columns = ("converter", "files without text", "passages", *measures)
    return Table("share of answerable questions", columns, rows)


def _has(question: Question, passages: Sequence[Passage]) -> bool:
    return any(answer_flags(question.answers, (one.text for one in passages), "tokens"))


def _likeliest(question: Question, passages: Sequence[Passage]) -> list[Passage]:
    """The passages of a document, those first that share most words with the question, weighted by rarity."""
    words = [_words(f"{one.title} {one.text}") for one in passages]
    counts = Counter(word for found in words for word in found)
    asked = _words(question.text)

    def score(found: set[str]) -> float:
        return sum(math.log((1 + len(passages)) / counts[word]) for word in asked & found)

    scores = [score(found) for found in words]
    return [passages[n] for n in sorted(range(len(passages)), key=lambda n: (-scores[n], n))]


def _words(text: str) -> set[str]:
    return {word.lower() for word in simple_tokenize(text) if word.isalnum()}


def main(arguments: Sequence[str]) -> int:
    """The command: folder, Python, converters; returns the exit status."""
    if len(arguments) < 2 or set(arguments[2:]) - set(others.CONVERTERS):
        print(f"usage: beside.py DOCUMENTS PYTHON [{'|'.join(others.CONVERTERS)} …]", file=sys.stderr)
        return 2
    try:
        names = arguments[2:] or tuple(others.CONVERTERS)
        print(compare(Path(arguments[0]), arguments[1], names).to_text())
    except RagError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
