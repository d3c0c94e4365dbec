"""A corpus of any size whose passages are as long and worded as real ones: their sentences, recombined."""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rag.bench.report import Report, Table, format_bytes
from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_path
from rag.core.progress import Progress, format_seconds
from rag.data.sentences import split_sentences

_AT_ONCE = 4096  # passages of one random generator: the memory does not grow with the corpus
_WORDS = 100
_FEWEST_WORDS, _FEWEST_SENTENCES = 4, 8  # shorter lines are headings, shorter articles say little


def run_corpus_benchmark(
    sentences: list[Path],
    out: Path,
    real: list[Path] | None = None,
    passages: int = 1_000_000,
    seed: int = 0,
    format: str = "auto",
) -> Report:
    """Write a corpus of a given size (JSONL), to measure how an index grows.

    A passage is 100 words: random sentences of two random articles in turn, under the title of the first.
    Real passages lie at random places among these, so that questions have answers. The vocabulary is that of
    the articles, however many passages are made of them.

    Args:
        sentences: Articles whose sentences are recombined; may be given several times.
        out: Corpus to write (.jsonl).
        real: Passages taken over as they are, ids included; may be given several times.
        passages: Size of the corpus, real passages included.
        seed: Equal seeds give equal bytes.
        format: Format of the articles; auto looks at the file.

    Raises:
        ConfigError: there are more real passages than passages, or too few of either.
        DataError: the articles have no sentences.
    """
    from rag.data.corpus import read_documents

    given = {"sentences": sentences, "real": real or []}
    named = {name: ", ".join(map(str, files)) for name, files in given.items()}
    report = Report("corpus", {**named, "passages": passages, "seed": seed})
    known = [(it.id, it.title, it.text) for it in read_documents(real)] if real else []
    if len(known) > passages or passages < 1:
        raise ConfigError(
            f"--passages is {passages:,} and --real has {len(known):,}, expected at least as many passages",
            hint="raise --passages or leave out a file",
        )
    began = time.perf_counter()
    digest, size_bytes, words = hashlib.sha256(), 0, 0
    with (
        atomic_path(out) as temporary,
        open(temporary, "wb") as file,
        Progress(passages, "passages", "corpus") as progress,
    ):
        made = _mixed(known, _Recombined(sentences, format), passages, seed)
        for number, (passage_id, title, text) in enumerate(made, 1):
            line = json.dumps({"id": passage_id, "title": title, "text": text}, ensure_ascii=False)
            data = f"{line}\n".encode()
            file.write(data)
            digest.update(data)
            size_bytes += len(data)
            words += text.count(" ") + 1
            if number % 1000 == 0:
                progress.update(1000)
    seconds = time.perf_counter() - began
    report.figures = {
        "passages": passages, "real": len(known), "bytes": size_bytes, "sha256": digest.hexdigest(),
        "words_per_passage": words / passages, "seconds": seconds,
    }  # fmt: skip
    rows = [
        ("passages", f"{passages:,}"),
        ("real ones among them", f"{len(known):,}"),
        ("size", format_bytes(size_bytes)),
        ("words per passage", f"{words / passages:.1f}"),
        ("sha256", digest.hexdigest()[:16]),
        ("time", format_seconds(seconds)),
    ]
    report.tables.append(Table(str(out), ("", "figure"), rows))
    return report


class _Recombined:
    """Passages of random sentences; number n is the same whatever was drawn before."""

    def __init__(self, articles: Sequence[Path], format: str) -> None:
        from rag.data.corpus import read_documents

        self._sentences: list[tuple[int, str]] = []  # number of words, text
        self._titles: list[str] = []
        bounds = [0]  # of each article's sentences
        for article in read_documents(articles, format=format):
            lines = (sentence.split() for sentence in split_sentences(article.text))
            kept = [(len(words), " ".join(words)) for words in lines if len(words) >= _FEWEST_WORDS]
            if len(kept) >= _FEWEST_SENTENCES:
                self._titles.append(article.title)
                self._sentences += kept
                bounds.append(len(self._sentences))
        if not self._titles:
            raise DataError(
                f"{', '.join(map(str, articles))}: no article has {_FEWEST_SENTENCES} sentences of "
                f"{_FEWEST_WORDS} words or more",
                hint="give whole articles, for example the output of WikiExtractor",
            )
        self._first, self._counts = np.array(bounds[:-1]), np.diff(bounds)

    def __call__(self, count: int, seed: int) -> Iterator[tuple[str, str, str]]:
        """Id, title and text of `count` passages."""
        most = -(-_WORDS // _FEWEST_WORDS)
        for start in range(0, count, _AT_ONCE):
            random = np.random.default_rng([seed, start])
            pairs = random.integers(0, len(self._titles), (_AT_ONCE, 2))
            articles = np.tile(pairs, -(-most // 2))[:, :most]  # sentences of the two take turns
            drawn = self._first[articles] + random.integers(0, self._counts[articles])
            rows = zip(pairs[:, 0].tolist(), drawn.tolist(), strict=True)
            for number, (article, places) in enumerate(rows, start):
                if number == count:
                    return
                chosen, words = [], 0
                for place in places:
                    length, sentence = self._sentences[place]
                    chosen.append(sentence)
                    words += length
                    if words >= _WORDS:
                        break
                text = " ".join(chosen)
                if words > _WORDS:
                    text = text.rsplit(" ", words - _WORDS)[0]
                yield f"made-{number}", self._titles[article], text


def _mixed(
    known: Sequence[tuple[str, str, str]], make: _Recombined, passages: int, seed: int
) -> Iterator[tuple[str, str, str]]:
    """The real passages in their order at random places, and made ones at all others."""
    places = np.random.default_rng([seed]).choice(passages, len(known), replace=False)
    places.sort()
    made, position = make(passages - len(known), seed), 0
    for number, place in enumerate(places.tolist()):
        for _ in range(place - position):
            yield next(made)
        yield known[number]
        position = place + 1
    yield from made
