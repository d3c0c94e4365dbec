"""Rounds: retrieve, make examples of the results, train the retriever, index, evaluate, and again.

OUT/
  config.json                what decides the rounds
  round-0/evaluation/        the retriever that round 1 starts from
  round-1/found.json         the passages retrieved for the training questions
          examples.json      these with a reader's scores (`rag score`), or as positives and negatives
          retriever/         the training run
          index/             the passages under the new encoder
          evaluation/        held-out questions over it
  rounds.json                the table, and which round is best

Every step of a round is a function of the Python API; what is finished is not made again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from indexers.build import build_index
from indexers.index import Index
from indexers.settings import BuildSettings
from rag.core.errors import DataError
from rag.core.files import atomic_write_json, directory_lock, read_json, sha256_file
from rag.core.log import get_logger
from rag.core.manifest import MANIFEST_NAME, claim, read_manifest, version_of
from rag.core.types import Question
from rag.data.examples import read_examples, write_examples
from rag.data.selection import hold_out
from rag.eval.api import evaluate
from rag.eval.compare import compare_evaluations
from rag.eval.guard import check_selection_split
from rag.eval.results import load_evaluation
from rag.eval.runs import write_results
from rag.joint.questions import answered
from rag.pipeline import Pipeline
from rag.rounds.config import DistillRoundsConfig, RoundsConfig
from rag.rounds.labels import guided_examples
from rag.rounds.scoring import report_path, score_examples
from rag.rounds.signals import Judge, check_signal, judge_kind
from rag.runtime.model_files import EMBEDDED_ENCODER_NAMES
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.open import KINDS, named_kind, parse_kind
from retrievers.training.bi_encoder import start_from_index
from retrievers.training.config import BiEncoderConfig

_FIGURES = ("top1", "top5", "top20", "top100")

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """A round's held-out figures, and their comparison with the round before.

    Attributes:
        number: number of the round; 0 is the retriever that the first round starts from.
        figures: held-out figures by name, in percent.
        gain: gain of the chosen figure over the round before, with its 95 % interval: value, low, high; in
            points.
        p_value: p-value of that gain.
        facts: retriever of its index, counts of its examples.
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


def run_rounds(config: RoundsConfig, training: BiEncoderConfig) -> list[RoundResult]:
    """Train round by round, or go on with the rounds in `config.out` behind what is finished.

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
        check_signal(judge_kind(config.reader), config.signal, config.reader or "the shipped reader")
    questions, held_out = _questions(config)
    first, judged, later = _retrievers(config)
    training, starts = _starting(config, training)
    with directory_lock(config.out):  # nothing is written before the inputs are known to be right
        _claim(config, training)
        index, kind, encoder = config.index, first, None
        results = [_evaluate(config, 0, index, judged, held_out, starts)]
        for number in range(1, config.rounds + 1):
            folder = config.out / f"round-{number}"
            found, examples = folder / "found.json", folder / "examples.json"
            if not found.exists():
                with Pipeline.open(index, reader=False, retriever=kind) as pipeline:
                    write_results(pipeline, questions, found, config.top_k)
            if not examples.exists():
                _write_examples(config, found, examples)
            counts = read_json(report_path(examples))["counts"]
            encoder = _train(config, training, folder, index, encoder)
            index, kind = _index(config, folder, encoder), later
            results.append(_evaluate(config, number, index, later, held_out, counts))
            _write_table(config, results)
            if not results[-1].gained:
                log.info("round %d gains nothing beyond noise: it is the last", number)
                break
    return results


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
    alone = config.retriever == "auto" and set(KINDS[trained_kind]) <= set(parts)
    later = first if parse_kind(first)[0] == "hybrid" and not alone else trained_kind
    log.info("round 1 learns from %s, later rounds from %s", first, later)
    return first, trained_kind if alone else first, later


def _starting(config: RoundsConfig, training: BiEncoderConfig) -> tuple[BiEncoderConfig, dict[str, str]]:
    """The training from the encoder of the first index, unless it names another; then both, for the table."""
    over = training.replaced(index=config.index)
    begun = start_from_index(over).replaced(index=training.index)
    with Index.open(config.index) as index:
        identity = index.encoder_identity
    if identity is None or over.keeps_index or begun.question_encoder != training.question_encoder:
        return begun, {}
    start = begun.question_encoder or EMBEDDED_ENCODER_NAMES[0]
    encoder = BiEncoder.load(start, precision="fp32")
    encoder.close()
    if encoder.identity.weights_sha256 == identity.weights_sha256:
        return begun, {}
    log.warning("round 0 measures %s, the index's encoder; training starts from %s", identity.name, start)
    return begun, {"encoder": identity.name, "training starts from": start}


def _write_examples(config: Any, found: Path, out: Path) -> None:
    """Examples of what was retrieved, with a report: scored by a reader, or labelled by answers."""
    if isinstance(config, DistillRoundsConfig):
        judge = Judge.open(config.reader, config.signal)
        score_examples(found, out, judge)
        judge.close()
        return
    counts: Counter[str] = Counter()
    ranked = read_examples(found, needs="questions")
    if not write_examples(out, guided_examples(ranked, config, counts)):
        raise DataError(
            f"no retrieved passage holds an answer to any of {counts['questions']} questions "
            f"({counts['without answers']} have no answers)",
            hint="raise top_k and the rules of positives, or give the corpus that answers them",
        )
    atomic_write_json(report_path(out), {"counts": dict(counts)})


def _train(
    config: RoundsConfig, training: BiEncoderConfig, folder: Path, index: Path, before: Path | None
) -> Path:
    """The encoder of a round, trained from the first encoder or that of the round before."""
    encoder = folder / "retriever" / "encoder"
    if (encoder / "README.md").exists():  # a run writes it last
        return encoder
    begin = before is None or config.restart
    stays = training.frozen == "passage"  # the vectors of an index: nothing has to be encoded again
    trained = training.replaced(
        out=folder / "retriever", train_files=(folder / "examples.json",),
        index=(config.index if begin else index) if stays else None,
        question_encoder=training.question_encoder if begin else str(before),
        passage_encoder=training.passage_encoder if begin else None,
        reset_layers=training.reset_layers if begin else 0,
    )  # fmt: skip
    finished: Path = trained.train_model()
    return finished


def _index(config: RoundsConfig, folder: Path, encoder: Path) -> Path:
    """The passages of the first index under the new encoder, with BM25 if it has that."""
    for out in (folder / "retriever" / "index", folder / "index"):
        if (out / MANIFEST_NAME).exists():
            return out
    loaded = BiEncoder.load(encoder)
    with Index.open(config.index) as source:
        build_index(
            source.passages, out, encoder=loaded,
            settings=BuildSettings(
                retriever="hybrid" if "bm25" in source.parts else "dense", index_type=config.index_type
            ),
            source={"passages": source.version, "encoder": loaded.identity.weights_sha256},
        )  # fmt: skip
    loaded.close()
    return out


def _evaluate(
    config: RoundsConfig,
    number: int,
    index: Path,
    retriever: str,
    held_out: Sequence[Question],
    counts: Mapping[str, Any],
) -> RoundResult:
    """Held-out figures over a round's index, and the gain over the round before."""
    places = [config.out / f"round-{n}" / "evaluation" for n in (number - 1, number)]
    measured = evaluate(
        index, list(held_out), places[1], reader=False, split="dev", retriever=retriever
    ).figures
    figures = {name: 100.0 * measured[name].value for name in _FIGURES if name in measured}
    facts = {"searched": retriever, **counts}
    if not number:
        return RoundResult(0, figures, facts=facts)
    pair = [load_evaluation(place, place.parent.name) for place in places]
    compared = compare_evaluations(pair, [config.figure])[0].result
    gain = compared.difference
    interval = (100 * gain.value, 100 * gain.low, 100 * gain.high)
    return RoundResult(number, figures, interval, compared.p_value, facts)


def _questions(config: RoundsConfig) -> tuple[list[Question], list[Question]]:
    """Questions to learn from and held-out ones."""
    questions = answered(config.questions)
    separate = None if config.held_out is None else answered(config.held_out)
    train, held_out = hold_out(questions, config.validation_fraction, 0, attrgetter("text"), separate)
    if not train or not held_out:
        raise DataError(
            f"{config.questions}: {len(questions)} questions with answers, {len(train)} of them to learn "
            f"from, {len(held_out)} held out",
            hint="give questions with answers, and raise validation_fraction or give held-out questions",
        )
    return train, held_out


def _claim(config: RoundsConfig, training: BiEncoderConfig) -> None:
    """`config.json` says whose folder this is; the number of rounds may change.

    Raises:
        MismatchedArtifactError: rounds of other settings are there.
    """
    settings = config.model_dump(mode="json", exclude={"out", *config.free})
    files = [Path(path) for path in (config.questions, config.held_out) if path is not None]
    settings |= {
        "recipe": config.recipe,
        "sha256": [sha256_file(path) for path in files if path.is_file()],
        "index_version": version_of(read_manifest(config.index)),
        "training": training.model_dump(mode="json", exclude={"out", "train_files", *training.free}),
    }
    hint = "choose another --out, or repeat the command that started them"
    claim(config.out / "config.json", settings, "rounds", hint=hint)


def _write_table(config: RoundsConfig, results: Sequence[RoundResult]) -> None:
    best = _best(results, config.figure)
    rows = [
        {"round": r.number, "figures": r.figures, "gain": r.gain, "p_value": r.p_value, "facts": r.facts}
        for r in results
    ]
    place = str(config.out / f"round-{best}" / "retriever" / "encoder") if best else None
    atomic_write_json(config.out / "rounds.json", {"rounds": rows, "best": best, "encoder": place})
