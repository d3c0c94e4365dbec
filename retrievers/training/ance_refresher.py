"""ANCE's inferencer: encode the corpus with the newest snapshot, search, mine, measure, publish; again.

It shares nothing with the trainer but a folder, and neither waits for the other:

    snapshots/      encoders that the trainer publishes
    negatives/      what is mined with them, published here
    refresher/      vectors of the refresh at hand; a killed one goes on shard by shard

A generation of negatives holds

    negatives.values.npy, negatives.bounds.npy   passage rows, hardest first, a list a question
    probe_vectors.npy       (m, D) vectors of the probe passages
    probe_rows.npy          (n, K) best rows of the probe questions, -1 where nothing was found
    figures.json            held-out retrieval, staleness, counts

Source:
    Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text Retrieval",
    section 4, figure 2.

Note:
    The published inferencer measures itself on the test questions. Here held-out training questions are
    searched, and nothing else.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexers.embeddings import EmbeddingShards, encode_corpus
from indexers.exact import exact_search
from indexers.gold import CorpusTexts
from indexers.passages import PassageStore
from indexers.protocols import FloatArray, IntArray
from indexers.token_build import build_tokens
from indexers.token_index import TokenIndex
from rag.core.errors import DataError, MismatchedArtifactError
from rag.core.files import atomic_write_json, read_json
from rag.core.log import get_logger
from rag.core.npy import load_npy, save_npy
from rag.core.progress import Progress
from rag.core.types import Query
from rag.data.examples import Example
from rag.runtime.seeds import generator
from rag.training.refresh.generations import Generation, Generations
from rag.training.refresh.refresher import Refresher
from rag.training.refresh.staleness import TOP_K, Probes, ProbeSet, compare
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.data import answer_matcher
from retrievers.examples.tokens import TokenTable, TokenTableWriter
from retrievers.negatives.select import NegativeFilter
from retrievers.protocols import TextEncoder
from retrievers.training.config import AnceTrainConfig
from retrievers.training.validation import TOP_KS, CorpusSearch, right_rows

_QUESTIONS_AT_ONCE = 2048
_TURN_STREAM = 77_001
_NAME = "negatives"

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MinedNegatives:
    """Negatives of one version of the model.

    Attributes:
        table: a list of passage rows for every example, maybe empty.
        probes: of the version that mined them.
        figures: what was measured.
    """

    table: TokenTable
    probes: Probes
    figures: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        """Put the files into `folder`."""
        shape = self.table.write(folder, _NAME)
        save_npy(folder / "probe_vectors.npy", self.probes.vectors)
        save_npy(folder / "probe_rows.npy", self.probes.rows)
        sizes = {"vectors": list(self.probes.vectors.shape), "rows": list(self.probes.rows.shape)}
        atomic_write_json(folder / "figures.json", {"table": shape, "probes": sizes, "figures": self.figures})

    @classmethod
    def read(cls, generation: Generation, *, examples: int, key: str) -> MinedNegatives:
        """Map a published generation into memory.

        Args:
            generation: as published by an inferencer.
            key: fingerprint of the examples and the corpus that the rows speak of.

        Raises:
            MismatchedArtifactError: it was mined for other examples or another corpus.
            ArtifactError: a file is missing or damaged.
        """
        described = read_json(generation.path / "figures.json")
        if generation.meta.get("key") != key or described["table"]["rows"] != examples:
            raise MismatchedArtifactError(
                f"{generation.path} holds negatives for {described['table']['rows']} other questions, or of "
                f"another corpus; expected {examples} (key {key}, found {generation.meta.get('key')})",
                hint="start trainer and inferencer with the same configuration, or choose another --out",
            )
        sizes = described["probes"]
        probes = Probes(
            load_npy(generation.path / "probe_vectors.npy", dtype=np.float32, shape=tuple(sizes["vectors"])),
            load_npy(generation.path / "probe_rows.npy", dtype=np.int64, shape=tuple(sizes["rows"])),
        )
        table = TokenTable.read(generation.path, _NAME, described["table"])
        return cls(table, probes, described["figures"])


class Inferencer(Refresher):
    """Makes negatives out of snapshots.

    Args:
        corpus: passages that are searched; their rows are what is published.
        train: questions to mine for, in the trainer's order.
        held_out: questions to measure on; never mined for.
        key: fingerprint of questions and corpus, the same in the trainer.
        load: snapshot folder → encoder.

    Attributes:
        removed: candidates thrown out so far, by reason.
    """

    def __init__(
        self,
        config: AnceTrainConfig,
        corpus: PassageStore,
        train: Sequence[Example],
        held_out: Sequence[Example],
        *,
        key: str,
        load: Callable[[Path], TextEncoder],
    ) -> None:
        self.config, self.corpus, self.train, self.held_out = config, corpus, train, held_out
        super().__init__(
            Generations(config.out / "snapshots"), Generations(config.out / "negatives"), key=key,
            keep=config.keep_generations, poll_s=config.poll_s,
        )  # fmt: skip
        self._load = load
        self.probes = ProbeSet.draw(config, config.run.seed, questions=len(train), passages=len(corpus))
        self.removed: Counter[str] = Counter()
        texts = CorpusTexts(corpus)
        self._right = right_rows(texts, train)
        watched = list(held_out[: config.data.validation_questions])
        self._held_out = CorpusSearch(corpus, watched, texts=texts) if watched else None
        missing = sum(not rows for rows in self._right)
        if missing:
            log.warning(
                "%d of %d training questions have no positive in the corpus: only the answer filter keeps "
                "right passages out of their negatives",
                *(missing, len(train)),
            )

    def build(self, snapshot: Generation, before: Generation | None, folder: Path) -> None:
        """Put the negatives that a snapshot finds into `folder`.

        Raises:
            DataError: not one negative was found.
        """
        encoder = self._load(snapshot.path / "encoder")
        mined = self._mine(self._encode(encoder), encoder, snapshot, before)
        mined.write(folder)
        shown = {
            name: value for name, value in mined.figures.items() if name.startswith(("held_out/", "refresh/"))
        }
        log.info("%s", "  ".join(f"{name} {value:.4g}" for name, value in shown.items()))

    def _encode(self, encoder: TextEncoder) -> _Searched:
        """Vectors of the whole corpus; shards that an earlier, killed attempt finished are kept."""
        work = self.config.out / "refresher"
        place = work / f"embeddings-{encoder.identity.fingerprint()}"
        for other in work.glob("embeddings-*"):
            if other != place:
                shutil.rmtree(other)
        if isinstance(encoder, BiEncoder) and encoder.identity.pooling == "tokens":
            return _SearchedTokens(place, self.corpus, encoder)
        return _Searched(encoder, encode_corpus(place, self.corpus, encoder, "float16", check=self.check))

    def _mine(
        self, searched: _Searched, encoder: TextEncoder, snapshot: Generation, before: Generation | None
    ) -> MinedNegatives:
        config = self.config
        questions = [example.query for example in self.train]
        due = self._due(self.turn(before))
        mined = TokenTableWriter(None)
        with Progress(len(due), "questions", "mine") as progress:
            for examples, _, rows in self._search(searched, questions, due, config.depth):
                mined.append(list(map(self._select, examples.tolist(), rows)))
                progress.update(len(examples))
        table = mined.finish().spread(due, len(questions))
        if not len(table.values):
            raise DataError(
                f"of the {config.depth} best passages of {len(questions)} questions not one is a negative",
                hint="raise depth, or set answer_filter=false if every passage holds an answer",
            )
        probed = self._search(searched, questions, self.probes.questions, min(TOP_K, config.depth))
        _, scores, found = map(np.concatenate, zip(*probed, strict=True))
        after = Probes(searched.vectors(self.probes.passages), found)
        known = None
        if before is not None:
            known = MinedNegatives.read(before, examples=len(self.train), key=self.key)
        staleness = compare(
            known.probes if known is not None else None,
            after,
            scores,
            age_steps=snapshot.step - before.step if before is not None else 0,
            corpus=len(self.corpus),
            temperature=config.model.temperature_of(encoder.identity.similarity),
        )
        figures: dict[str, Any] = {
            **{f"held_out/{name}": value for name, value in self._measure(searched).items()},
            **staleness.record(),
            "mined/questions": int((table.lengths > 0).sum()),
            "mined/negatives_per_question": float(table.lengths.mean()),
            "alarms": staleness.alarms(),
        }
        return MinedNegatives(known.table.replaced(table) if known is not None else table, after, figures)

    def _due(self, turn: int) -> IntArray:
        """Examples whose turn it is: all, or a slice of a permutation that is worked off in turns."""
        size = self.config.refresh_questions or len(self.train)
        turns = -(-len(self.train) // size)
        order = generator(self.config.run.seed, _TURN_STREAM).permutation(len(self.train)).astype(np.int64)
        return np.sort(order[turn % turns :: turns])

    def _search(
        self, searched: _Searched, questions: Sequence[Query], chosen: IntArray, top_k: int
    ) -> Iterator[tuple[IntArray, FloatArray, IntArray]]:
        """(chosen questions, scores (n, K), rows (n, K)), block by block."""
        for start in range(0, len(chosen), _QUESTIONS_AT_ONCE):
            block = chosen[start : start + _QUESTIONS_AT_ONCE]
            yield (block, *searched.search([questions[i] for i in block.tolist()], top_k))
            self.check()

    def _select(self, example: int, found: IntArray) -> list[int]:
        """What of the rows found for an example becomes its negatives."""
        question = self.train[example]
        filters = self.config.answer_filter
        allowed = NegativeFilter(
            answer_matcher(question.answers, question.answer_mode) if filters else None,
            self._right[example],
            [passage.text for passage in question.positives],
            self.removed,
        )
        ranked = found[self.config.skip :].tolist()
        passing = (row for row in ranked if row >= 0 and allowed.accepts(row, self.corpus[row]))
        return list(itertools.islice(passing, self.config.kept))

    def _measure(self, searched: _Searched) -> dict[str, float]:
        """Retrieval of the held-out questions."""
        if self._held_out is None:
            return {}
        questions = [example.query for example in self._held_out.examples]
        every = np.arange(len(questions), dtype=np.int64)
        found = [rows for _, _, rows in self._search(searched, questions, every, TOP_KS[-1])]
        return self._held_out.judge(np.concatenate(found))


class _Searched:
    """The corpus as one snapshot encoded it, searched exactly."""

    def __init__(self, encoder: TextEncoder, embeddings: EmbeddingShards) -> None:
        self._encoder, self._embeddings = encoder, embeddings

    def search(self, queries: Sequence[Query], top_k: int) -> tuple[FloatArray, IntArray]:
        """Scores (n, K) and rows (n, K), best first."""
        return exact_search(self._embeddings, self._encoder.encode_queries(queries), top_k)

    def vectors(self, rows: IntArray) -> FloatArray:
        """Vectors (m, D) of some passages, to see how they move."""
        return self._embeddings.rows(rows)


class _SearchedTokens(_Searched):
    """The same with a vector a token, compressed and searched in stages."""

    def __init__(self, place: Path, corpus: PassageStore, encoder: BiEncoder) -> None:
        build_tokens(corpus, place, encoder)
        self._tokens, self._corpus, self._makes = TokenIndex.open(place), corpus, encoder

    def search(self, queries: Sequence[Query], top_k: int) -> tuple[FloatArray, IntArray]:
        """Scores (n, K) and rows (n, K), best first."""
        found = self._makes.question_tokens([query.question for query in queries])
        assert found.lengths is not None
        return self._tokens.search(found.values.numpy(), found.lengths.numpy(), top_k)

    def vectors(self, rows: IntArray) -> FloatArray:
        """The vectors of all tokens of some passages."""
        passages = self._corpus.get_many(rows)
        found = self._makes.passage_tokens([p.title for p in passages], [p.text for p in passages])
        return np.asarray(found.values.numpy(), np.float32)
