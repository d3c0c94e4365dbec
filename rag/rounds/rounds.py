"""Rounds: retrieve, make examples of the results, train the retriever, index, evaluate, and again.

OUT/
  config.json                what decides the rounds
  round-0/evaluation/        the retriever that round 1 starts from
  round-1/found.json         the passages retrieved for the training questions
          …                  the examples made of it
          retriever/         the training run
          index/             the passages under the new encoder
          evaluation/        held-out questions over it
          done.json          which of these are finished, and their figures
  rounds.json                the table, and which round is best

What is retrieved becomes examples in `rag.rounds.by_reader` (a reader scores each passage) or
`rag.rounds.by_answers` (answers tell which passages are right).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from indexers.build import build_index
from indexers.index import Index
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_write_json, directory_lock, read_json, sha256_file
from rag.core.log import get_logger
from rag.core.manifest import claim, read_manifest, version_of
from rag.core.npy import load_npy, save_npy
from rag.core.types import Question
from rag.data.examples import Candidate, Example, write_examples
from rag.data.selection import hold_out
from rag.eval.api import evaluate
from rag.eval.compare import compare_evaluations
from rag.eval.guard import check_selection_split
from rag.eval.results import load_evaluation
from rag.joint.questions import answered
from rag.pipeline import Pipeline
from rag.recipes import RECIPES
from rag.rounds.by_answers import labelled_examples
from rag.rounds.by_reader import check_reader, scored_examples
from rag.rounds.config import DistillRoundsConfig, RoundsConfig
from rag.training.refresh.staleness import Staleness, distinct_share, top_k_overlap
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.negatives.blocks import BlockFolder
from retrievers.open import KINDS, named_kind, parse_kind
from retrievers.training.config import RetrieverTrainConfig

_FIGURES = ("top1", "top5", "top20", "top100")
_BATCH = 512  # questions: what a stop can lose of a round's search


@dataclass(frozen=True, slots=True)
class RoundResult:
    """A round's held-out figures, and their comparison with the round before.

    Attributes:
        number: number of the round; 0 is the retriever that the first round starts from.
        figures: held-out figures by name, in percent.
        gain: gain of the chosen figure over the round before, with its 95 % interval: value, low, high; in
            points.
        p_value: p-value of that gain.
        facts: retriever of its index, counts, overlap with the round before.
    """

    number: int
    figures: Mapping[str, float]
    gain: tuple[float, float, float] | None = None
    p_value: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gained(self) -> bool:
        """Whether its gain is beyond noise: the 95 % interval lies above zero."""
        return self.gain is None or self.gain[1] > 0


class Round:
    """One round's folder; stages that are done are not repeated.

    Attributes:
        number: number of the round; 0 is the starting point.
        folder: folder of the round's files.
    """

    def __init__(self, out: Path, number: int) -> None:
        self.number, self.folder = number, out / f"round-{number}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ledger = self.folder / "done.json"
        self._done: dict[str, Any] = read_json(self._ledger) if self._ledger.is_file() else {}

    def stage(self, name: str, run: Callable[[], Any]) -> Any:
        """The result of `run` (a JSON value), from now or from an earlier process."""
        if name not in self._done:
            get_logger(__name__).info("%s: %s", self.folder.name, name)
            self._done[name] = run()
            atomic_write_json(self._ledger, self._done)
        return self._done[name]


@dataclass(frozen=True, slots=True)
class Searched:
    """The index that a round searches, as `Pipeline.open` and `evaluate` take it.

    Attributes:
        index: directory of the index.
        retriever, encoder: arguments of these names of `Pipeline.open`.
    """

    index: Path
    retriever: str = "auto"
    encoder: str | None = None


_EXAMPLES: Mapping[str, Callable[[Any, Round, Path], tuple[Path, dict[str, Any]]]] = {
    "distill": scored_examples,
    "colbert": labelled_examples,
}


def run_rounds(config: RoundsConfig, training: RetrieverTrainConfig) -> list[RoundResult]:
    """Train round by round, or resume the rounds in `config.out` after the last finished stage.

    The last round is the first whose gain on the held-out questions is not significant.

    Args:
        config: its class decides how examples are made.
        training: training settings of every round's retriever; their paths are set here.

    Returns:
        Results of all rounds, from round 0 on; also in `OUT/rounds.json`, with the best encoder's folder.

    Raises:
        ConfigError: the held-out questions are a test set, or the reader, the retriever or the training
            cannot work.
        DataError: no question can be trained on.
        MismatchedArtifactError: `config.out` holds rounds of other settings.
    """
    if config.held_out is not None:
        check_selection_split(config.held_out)
    if isinstance(config, DistillRoundsConfig):
        check_reader(config)
    questions, held_out = _questions(config)
    first, judged, later = _retrievers(config)
    with directory_lock(config.out):  # nothing is written before the inputs are known to be right
        _claim(config, training)
        searched = Searched(config.index, first, config.index_encoder)
        start, judges = Round(config.out, 0), replace(searched, retriever=judged)
        figures = start.stage("evaluate", lambda: _evaluate(config, judges, start.folder, held_out))
        results = [RoundResult(0, figures, facts={"searched": judged})]
        encoder: Path | None = None
        for number in range(1, config.rounds + 1):
            current = Round(config.out, number)
            facts = current.stage("retrieve", partial(_retrieve, config, current, searched, questions))
            examples, more = _EXAMPLES[config.recipe](config, current, current.folder / "found.json")
            begin = encoder is None or config.restart
            bank = config.index if begin else searched.index
            stays = training.model.frozen == "passage"  # its vectors: nothing has to be encoded again
            trained = training.replaced(
                out=current.folder / "retriever", train_files=(examples,), index=bank if stays else None,
                question_encoder=training.model.question_encoder if begin else str(encoder),
                passage_encoder=training.model.passage_encoder if begin else None,
                reset_layers=training.model.reset_layers if begin else 0,
            )  # fmt: skip
            encoder = Path(current.stage("train", partial(_train, trained)))
            place = Path(current.stage("index", partial(_index, config, current, encoder)))
            searched = Searched(place, later)
            figures = current.stage(
                "evaluate", partial(_evaluate, config, searched, current.folder, held_out)
            )
            facts = {"searched": later, **facts, **more}
            results.append(_compared(config, RoundResult(number, figures, facts=facts)))
            _write_table(config, results)
            if not results[-1].gained:
                get_logger(__name__).info("round %d gains nothing beyond noise: it is the last", number)
                break
    return results


def _train(config: RetrieverTrainConfig) -> str:
    return str(resolve_name(RECIPES[config.recipe].run)(config))


def table(results: Sequence[RoundResult], figure: str) -> list[str]:
    """A table of the rounds for the terminal, one line per round.

    Example:
        >>> first = RoundResult(0, {"top20": 40.0})
        >>> for line in table([first, RoundResult(1, {"top20": 44.0}, (4.0, 2.0, 6.0), 0.001)], "top20"):
        ...     print(line)
        round  top20  gain in top20
            0   40.0
            1   44.0  +4.0 [+2.0, +6.0], p = 0.001
        best in top20: round 1
    """
    names = [name for name in _FIGURES if name in results[0].figures]
    lines = ["round  " + "  ".join(f"{name:>5}" for name in names) + f"  gain in {figure}"]
    for result in results:
        line = f"{result.number:>5}  " + "  ".join(f"{result.figures[name]:>5.1f}" for name in names)
        if result.gain is not None and result.p_value is not None:
            value, low, high = result.gain
            line += f"  {value:+.1f} [{low:+.1f}, {high:+.1f}], p = {result.p_value:.2g}"
        facts = ", ".join(f"{name} {value}" for name, value in result.facts.items())
        lines.append(line + (f"  ({facts})" if facts else ""))
    best = _best(results, figure)
    return [*lines, f"best in {figure}: " + (f"round {best}" if best else "what the rounds started from")]


def _best(results: Sequence[RoundResult], figure: str) -> int:
    return max(results, key=lambda result: result.figures[figure]).number


def _retrievers(config: RoundsConfig) -> tuple[str, str, str]:
    """The retrievers of round 1's training, of round 0's evaluation, and of later rounds."""
    trained_kind = "colbert" if config.index_type == "plaid" else "dense"
    with Index.open(config.index) as index:
        first, parts = named_kind(config.retriever, index), index.parts
    later = config.next_retriever
    alone = config.retriever == later == "auto" and set(KINDS[trained_kind].needs) <= set(parts)
    if later == "auto":
        later = first if parse_kind(first)[0] == "hybrid" and not alone else trained_kind
    if parse_kind(later)[0] == "hybrid" and "bm25" not in parts:
        raise ConfigError(f"{config.index} has no bm25 part, which next_retriever={later} needs")
    get_logger(__name__).info("round 1 learns from %s, later rounds from %s", first, later)
    return first, trained_kind if alone else first, later


def _index(config: RoundsConfig, current: Round, encoder: Path) -> str:
    """The passages of the first index under the new encoder, with BM25 if it has that."""
    if (trained := current.folder / "retriever" / "index").is_dir():
        return str(trained)
    loaded, out = BiEncoder.load(encoder), current.folder / "index"
    with Index.open(config.index) as source:
        build_index(
            source.passages, out, encoder=loaded,
            settings=BuildSettings(
                retriever="hybrid" if "bm25" in source.parts else "dense", index_type=config.index_type
            ),
            source={"passages": source.version, "encoder": loaded.identity.weights_sha256},
        )  # fmt: skip
    loaded.close()
    return str(out)


def _compared(config: RoundsConfig, result: RoundResult) -> RoundResult:
    """The result with its gain over the round before."""
    numbers = (result.number - 1, result.number)
    places = [(config.out / f"round-{n}" / "evaluation", f"round {n}") for n in numbers]
    compared = compare_evaluations([load_evaluation(*place) for place in places], [config.figure])[0].result
    gain = compared.difference
    shown = (100 * gain.value, 100 * gain.low, 100 * gain.high)
    return replace(result, gain=shown, p_value=compared.p_value)


def _evaluate(
    config: RoundsConfig, searched: Searched, folder: Path, held_out: Sequence[Question]
) -> dict[str, float]:
    figures = evaluate(
        searched.index, list(held_out), folder / "evaluation", reader=False, profile=config.profile,
        split="dev", retriever=searched.retriever, index_encoder=searched.encoder,
    ).figures  # fmt: skip
    return {name: 100.0 * figures[name].value for name in _FIGURES if name in figures}


def _retrieve(
    config: RoundsConfig, current: Round, searched: Searched, questions: Sequence[Question]
) -> dict[str, Any]:
    """Write the passages retrieved for the training questions as examples; returns facts for the table."""
    pipeline = Pipeline.open(
        searched.index, reader=False, retriever=searched.retriever, index_encoder=searched.encoder
    )
    # all else is claimed by the folder of the rounds
    identity = {"questions": len(questions), "top_k": config.top_k}
    blocks = BlockFolder(current.folder / "found", identity)

    def rows_of(block: int) -> Path:
        return blocks.folder / f"rows-{block:06d}.npy"

    def search(block: Sequence[Question], counts: Counter[str]) -> Any:
        rows = np.full((len(block), config.top_k), -1, np.int64)
        results = pipeline.retrieve([question.text for question in block], config.top_k)
        for row, question, pairs in zip(rows, block, results, strict=True):
            row[: len(pairs)] = [hit.row for hit, _ in pairs]
            listed = (
                Candidate(passage, "retrieved", "", rank, round(hit.score, 5))
                for rank, (hit, passage) in enumerate(pairs, start=1)
            )
            yield Example.of(question, listed)
        save_npy(rows_of(blocks.finished), rows)

    blocks.fill(questions, search, total=len(questions), size=_BATCH, unit="questions", verb="retrieve")
    write_examples(current.folder / "found.json", blocks.examples())
    rows = np.concatenate([np.load(rows_of(n), allow_pickle=False) for n in range(blocks.finished)])
    distinct = distinct_share(rows, len(pipeline.index.passages))
    pipeline.close()
    save_npy(current.folder / "found_rows.npy", rows)
    blocks.remove()
    facts: dict[str, Any] = {"distinct": round(distinct, 3)}
    for alarm in Staleness(distinct=distinct).alarms():
        get_logger(__name__).warning("%s: %s", current.folder.name, alarm)
    before = config.out / f"round-{current.number - 1}" / "found_rows.npy"
    if before.is_file():
        old = load_npy(before, dtype=np.int64, shape=rows.shape)
        facts["overlap"] = round(top_k_overlap(old, rows), 3)
    return facts


def _questions(config: RoundsConfig) -> tuple[list[Question], list[Question]]:
    """Questions to learn from and held-out ones."""
    questions = answered(config.questions)
    separate = None if config.held_out is None else answered(config.held_out)
    train, held_out = hold_out(questions, config.validation_fraction, 0, attrgetter("text"), separate)
    train = train[: config.train_questions or None]
    if not train or not held_out:
        raise DataError(
            f"{config.questions}: {len(questions)} questions with answers, {len(train)} of them to learn "
            f"from, {len(held_out)} held out",
            hint="give questions with answers, and raise validation_fraction or give held-out questions",
        )
    return train, held_out


def _claim(config: RoundsConfig, training: RetrieverTrainConfig) -> None:
    """`config.json` says whose folder this is; the number of rounds may change.

    Raises:
        MismatchedArtifactError: rounds of other settings are there.
    """
    settings = config.model_dump(mode="json", exclude={"out", *config.free})
    files = [Path(path) for path in (config.questions, config.held_out) if path is not None]
    settings["sha256"] = [sha256_file(path) for path in files if path.is_file()]
    settings["training"] = training.model_dump(mode="json", exclude={"out", "train_files", *training.free})
    settings["recipe"] = config.recipe
    path, version = config.out / "config.json", version_of(read_manifest(config.index))
    settings["index_version"] = version
    present = None
    if path.is_file():  # rounds of an earlier version of this program do not say which index they searched
        present = _settled({"index_version": version, **read_json(path)}, training)
    hint = "choose another --out, or repeat the command that started them"
    claim(path, _settled(settings, training), "rounds", found=present, hint=hint)


def _settled(settings: Mapping[str, Any], training: RetrieverTrainConfig) -> dict[str, Any]:
    """The settings without those of the training's groups that may change when it resumes."""
    kept = dict(settings["training"])
    for name, kind in training.groups().items():
        kept[name] = {key: value for key, value in kept.get(name, {}).items() if key not in kind.free}
    return {**settings, "training": kept}


def _write_table(config: RoundsConfig, results: Sequence[RoundResult]) -> None:
    best = _best(results, config.figure)
    rows = [
        {"round": r.number, "figures": r.figures, "gain": r.gain, "p_value": r.p_value, "facts": r.facts}
        for r in results
    ]
    place = str(config.out / f"round-{best}" / "retriever" / "encoder") if best else None
    atomic_write_json(config.out / "rounds.json", {"rounds": rows, "best": best, "encoder": place})
