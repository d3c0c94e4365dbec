"""`kill -9` at random moments of a series of updates, and compare the index with one built at once.

python tests/recovery/update_killer.py --updates 200 --kills 20
"""

import argparse
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from indexers.documents import Put
from indexers.index import Index
from indexers.index_writer import update_index, write_index
from indexers.settings import BuildSettings
from rag.data.records import CorpusOptions, Document
from rag.data.split import split_documents
from rag.updates import record_digest
from tests.support.hashing import HashEncoder
from tests.support.processes import with_packages

WORDS = "river mountain vienna danube tulip graph vector index lake forest city bridge".split()  # noqa: SIM905
_START = 60
_IDS = 90


def settings(retriever: str) -> BuildSettings:
    return BuildSettings.model_validate(
        {"retriever": retriever, "shard_rows": 8, "probes": 4, "threads": 1}
    )


def cut(document: Document) -> list[Any]:
    return list(split_documents([document], CorpusOptions(words=8)))


def steps(seed: int, updates: int) -> list[tuple[list[Document], list[str]]]:
    """What each update sends and deletes; ids that were never there are deleted too, and some
    twice.
    """
    draw = random.Random(seed)

    def document(number: int) -> Document:
        return Document(f"d{number:02}", "t", " ".join(draw.choices(WORDS, k=draw.randint(1, 40))))

    made = [([document(number) for number in range(_START)], list[str]())]
    for _ in range(updates):
        sent = [document(number) for number in draw.sample(range(_IDS), draw.randint(0, 3))]
        gone = [f"d{draw.randint(0, _IDS + 9):02}" for _ in range(draw.randint(0, 3))]
        taken = {item.id for item in sent}
        made.append((sent, [id for id in gone + gone[:1] if id not in taken]))
    return made


def state(made: Sequence[tuple[list[Document], list[str]]]) -> dict[str, Document]:
    """The documents after these updates, in the order of the index."""
    documents: dict[str, Document] = {}
    for sent, gone in made:
        for id in gone:
            documents.pop(id, None)
        documents |= {item.id: item for item in sent}
    return documents


def update(place: Path, sent: list[Document], gone: list[str]) -> None:
    puts = {item.id: Put(item.id, record_digest(item), cut(item), sent=True) for item in sent}

    def changes(stored: Any) -> Iterable[Any]:
        kept = [entry for entry in stored if entry.id in puts or entry.id not in gone]
        yield from [puts.pop(entry.id, entry) for entry in kept]
        yield from puts.values()

    update_index(place, changes, lambda identity: HashEncoder())


def build(place: Path, documents: Iterable[Document], retriever: str) -> None:
    puts = (Put(each.id, record_digest(each), cut(each)) for each in documents)
    write_index(place, puts, encoder=HashEncoder(), settings=settings(retriever))


def differences(updated: Path, fresh: Path) -> list[str]:
    """In what two indexes differ: passages, vectors, answers; nothing if they are equal to the
    bit.
    """
    result = []
    with Index.open(updated, verify="deep") as one, Index.open(fresh) as other:
        if list(one.passages) != list(other.passages):
            result.append("passages")
        if [entry.rows for entry in one.documents] != [entry.rows for entry in other.documents]:
            result.append("documents")
        if one.dense is not None and other.dense is not None:
            queries = np.random.default_rng(0).standard_normal((20, 16)).astype(np.float32)
            pairs = zip(one.dense.search(queries, 20), other.dense.search(queries, 20), strict=True)
            if not all(np.array_equal(a, b) for a, b in pairs):
                result.append("dense")
        if one.lucene is not None and other.lucene is not None:
            asked = [" ".join(pair) for pair in zip(WORDS, WORDS[3:], strict=False)]
            if one.lucene.search(asked, 20) != other.lucene.search(asked, 20):
                result.append("bm25")
    return result


def kill_and_go_on(
    place: Path, *, updates: int, kills: int, seed: int = 0, retriever: str = "dense"
) -> list[int]:
    """Run the updates in processes that are killed at random moments; returns the steps that were
    cut short.

    After every kill the index has to be that of the last finished update, or of the one after it.

    Raises:
        AssertionError: it is neither, or the last one differs from an index built at once.
    """
    made = steps(seed, updates)
    draw = random.Random(seed)
    build(place / "index", made[0][0], retriever)
    at = 1
    cut_short = list[int]()
    while at <= updates:
        target = min(updates, at + draw.randint(0, max(2 * updates // max(kills, 1) - 1, 0)))
        killed = _run(
            place / "index", at, updates, seed, None if len(cut_short) >= kills else target, draw
        )
        if killed is None:
            break
        cut_short.append(killed)
        with Index.open(place / "index", verify="deep") as index:
            passages = list(index.passages)
        expected = [
            [passage for item in state(made[: killed + more]).values() for passage in cut(item)]
            for more in (0, 1)
        ]
        assert passages in expected, (
            f"after a kill in update {killed}, the index is neither old nor new"
        )
        at = killed + (passages != expected[0])
    build(place / "fresh", state(made).values(), retriever)
    assert differences(place / "index", place / "fresh") == []
    return cut_short


def _run(
    place: Path, first: int, updates: int, seed: int, target: int | None, draw: random.Random
) -> int | None:
    """Apply updates `first` …; killed while it works on `target`; the number of the update it
    worked on.
    """
    command = [sys.executable, __file__, "--work", str(place), "--first", str(first)]
    process = subprocess.Popen(
        [*command, "--updates", str(updates), "--seed", str(seed)],
        stdout=subprocess.PIPE,
        env=with_packages(),
        text=True,
    )
    took_s = 0.2
    began = time.monotonic()
    for line in process.stdout:
        working = int(line)
        if target is not None and working >= target:
            ready, _, _ = select.select([process.stdout], [], [], draw.uniform(0, took_s))
            if not ready:
                process.kill()
                later = process.stdout.read().split()  # what it had begun by then
                process.wait()
                return int(later[-1]) if later else working
            target = working + 1
        took_s = max(time.monotonic() - began, 0.02)
        began = time.monotonic()
    assert process.wait() == 0
    return None


def main() -> None:
    """Kill and go on; as a worker (`--work`), apply updates and print the number of each before
    it.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--retriever", default="dense")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--first", type=int, default=1)
    options = parser.parse_args()
    if options.work is not None:
        made = steps(options.seed, options.updates)
        for number in range(options.first, options.updates + 1):
            print(number, flush=True)
            update(options.work, *made[number])
        return
    with tempfile.TemporaryDirectory(prefix="rag-kill-") as folder:
        cut_short = kill_and_go_on(
            Path(folder),
            updates=options.updates,
            kills=options.kills,
            seed=options.seed,
            retriever=options.retriever,
        )
    print(f"{options.updates} updates, killed in {cut_short}: equal to an index built at once")


if __name__ == "__main__":
    main()
