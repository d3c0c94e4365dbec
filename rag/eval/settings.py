"""Settings of an evaluation, and the source of its questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from rag.config import Config
from rag.core.files import fingerprint, sha256_file
from rag.core.types import MAX_TOP_K, Question
from rag.data.files.huggingface import HF_PREFIX, parse_name, revision_of
from rag.data.files.streams import strip_compression
from rag.data.questions import question_files
from rag.data.text import REGEX_PROFILES, MatchMode
from rag.eval.guard import guess_split
from rag.metrics.answers import check_profile
from rag.metrics.kilt import PageKind
from rag.metrics.ranking import DEFAULT_MEASURES, check_ks

_PLAIN_WORDS = frozenset({"a", "b", "data", "queries", "query", "question", "questions", "qa", "set", "v"})


class EvaluationSettings(Config):
    """How questions are asked and scored.

    Attributes:
        profile: rules of EM and F1: squad, squad2, nq_open, drqa, kilt, fid, hotpot, trec_match, trec_search.
        ks: cut-offs of the retrieval figures.
        measures: measures in ir_measures' syntax, for questions whose gold passages are known.
        read_top_k: passages the reader sees.
        n_best: answers per question.
        batch_size: questions per batch.
        shard_size: questions between two writes; a killed run loses at most these.
        pages: KILT's page of a passage: its document (ids PAGE-n), the passage (its id) or the title.
        match: rule by which a passage holds an answer; None for the profile's rule.
        limit: use only the first so many questions.
        sample: use only so many of them, drawn at random with `seed`, in the order of the set.
        read: which passages the reader gets: "retrieved" ones, or the "gold" ones without a search.
        oracle: also read the gold passages, where known, to separate errors of retrieval and of reading.
        likelihood: also measure −log p of the first accepted answer by a generative reader, in nats.
        kept_texts: retrieved passages per question whose text is kept, for the report.
        resamples: number of bootstrap resamples.
        level: coverage of the intervals.
        seed: seed of the sample and of the bootstrap.
    """

    profile: Annotated[str, AfterValidator(check_profile)] = "squad"
    ks: Annotated[tuple[int, ...], AfterValidator(check_ks)] = (1, 5, 20, 100)
    measures: tuple[str, ...] = DEFAULT_MEASURES
    read_top_k: int = Field(default=20, ge=1, le=MAX_TOP_K)
    n_best: int = Field(default=5, ge=1)
    batch_size: int = Field(default=16, ge=1)
    shard_size: int = Field(default=64, ge=1)
    pages: PageKind = "document"
    match: Literal["tokens", "regex", "kilt"] | None = None
    limit: int | None = Field(default=None, ge=1)
    sample: int | None = Field(default=None, ge=1)
    read: Literal["retrieved", "gold"] = "retrieved"
    oracle: bool = False
    likelihood: bool = False
    kept_texts: int = 5
    resamples: int = 2000
    level: float = 0.95
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _no_measures_of_gold(self) -> EvaluationSettings:
        if self.read == "gold" and self.oracle:
            raise ValueError(
                "read=gold reads the gold passages alone, oracle reads them too: leave one of them out"
            )
        if max(self.ks) > MAX_TOP_K:
            raise ValueError(
                f"the largest of ks is {max(self.ks)}, expected at most {MAX_TOP_K} passages per question"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        """For `metrics.json`; newer fields only if they differ from the default, so that older results still
        match.
        """
        usual = {"read": "retrieved", "likelihood": False}
        found = self.model_dump(mode="json")
        return {name: value for name, value in found.items() if name not in usual or value != usual[name]}

    @property
    def is_regex(self) -> bool:
        """Whether accepted answers are patterns."""
        return self.profile in REGEX_PROFILES

    @property
    def match_mode(self) -> MatchMode:
        """The rule by which a passage holds an answer."""
        if self.match is not None:
            return self.match
        return "regex" if self.is_regex else "kilt" if self.profile == "kilt" else "tokens"

    @property
    def retrieve_top_k(self) -> int:
        """Passages to retrieve: enough for every figure and for the reader."""
        return max(*self.ks, self.read_top_k)


@dataclass(frozen=True, slots=True)
class QuestionSource:
    """Source of the questions: part of the report, and compared when an evaluation is resumed.

    Attributes:
        path: file, or data-set name.
        split: "train", "dev", "test" or None if unknown.
        sha256: checksum of the file; empty without a file.
        revision: commit of a data set of the hub; empty for files.
        total: number of questions if known, for the progress display.
    """

    name: str
    path: str = ""
    split: str | None = None
    sha256: str = ""
    revision: str = ""
    total: int | None = None

    @classmethod
    def of_file(cls, path: str | Path, *, split: str | None = None, format: str = "auto") -> QuestionSource:
        """Describe a question file, or a data set `hf:owner/name[:config][:split]`; the split is guessed from
        its name if not given. With the format "hf" the prefix may be left out.

        Raises:
            DataError: there is no such file or data set.
            ResourceError: the hub cannot be reached.
        """
        if format == "hf" or str(path).startswith(HF_PREFIX):
            full = HF_PREFIX + str(path).removeprefix(HF_PREFIX)
            place, configuration, part = parse_name(full)
            shown = f"{place} ({configuration})" if configuration else place
            marked = split or (guess_split(part) if part else None)
            return cls(shown, full, marked, revision=revision_of(full))
        file, files = Path(path), question_files(path)
        digests = [sha256_file(part) for part in files]
        digest = digests[0] if len(digests) == 1 else fingerprint(digests)
        return cls(_set_name(file), str(path), split or guess_split(files[-1]), digest)

    @classmethod
    def of_questions(cls, questions: Sequence[Question], *, split: str | None = None) -> QuestionSource:
        """Describe questions that were given as objects."""
        digest = fingerprint([[q.id, q.text, q.answers, q.gold_passage_ids] for q in questions])
        return cls("questions", split=split, sha256=digest, total=len(questions))

    def to_json(self) -> dict[str, Any]:
        """A dict ready for `json.dumps`; only data sets have a revision."""
        left_out = {"total"} if self.revision else {"total", "revision"}
        return {key: value for key, value in asdict(self).items() if key not in left_out}


def _set_name(file: Path) -> str:
    """The file's name without endings, preceded by its folder's if it is general ("dev", "questions")."""
    stem = strip_compression(file.name)
    stem = stem.removesuffix(Path(stem).suffix).removesuffix(".qa")
    words = re.findall(r"[a-z]+", stem.lower())
    says_little = all(word in _PLAIN_WORDS or guess_split(word) for word in words)
    folder = file.resolve().parent.name
    return f"{folder}/{stem}" if says_little and folder else stem
