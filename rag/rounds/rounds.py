"""Rounds: retrieve, make examples of the results, train the retriever, index, evaluate, and again.

OUT/
  config.json                what decides the rounds
  round-0/evaluation/        the retriever that round 1 starts from
  round-1/retrieved.json     the passages retrieved for the training questions
          examples.json      these with a reader's scores (`rag score`), or as positives and negatives
          retriever/         the training run
          index/             the passages under the new encoder
          evaluation/        held-out questions over it
  rounds.json                held-out figures of each round, and which is best

Every step of a round is a function of the Python API; what is finished is not made again.
"""

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import TypedDict

from indexers.index import Index
from indexers.index_writer import Content, write_index
from indexers.rights import copy_rights
from indexers.settings import BuildSettings
from rag.core.errors import DataError
from rag.core.files import atomic_write_json, directory_lock, read_json
from rag.core.manifest import MANIFEST_NAME, claim, index_version
from rag.core.types import Question
from rag.data.examples import read_examples, write_examples
from rag.data.questions import questions_digest
from rag.data.selection import hold_out
from rag.eval.api import evaluate
from rag.eval.runs import write_results
from rag.eval.source import check_selection_split
from rag.joint.questions import answered
from rag.pipeline import Pipeline
from rag.rounds.config import RoundsConfig
from rag.rounds.examples import score_examples
from rag.rounds.guidance import guided_examples
from rag.rounds.judges import Judge, open_judge
from rag.runtime.model_files import EMBEDDED_ENCODER_NAMES
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.open import KINDS, named_kind
from retrievers.training.bi_encoder import start_from_index
from retrievers.training.config import BiEncoderConfig


class Round(TypedDict):
    """A round of training; number 0 is the start.

    Attributes:
        figures: held-out figures in percent: an answer in the first k passages.
        facts: counts of its examples, and what was searched.
    """

    round: int
    figures: dict[str, float]
    facts: dict[str, object]


def run_rounds(config: RoundsConfig, training: BiEncoderConfig) -> list[Round]:
    """Train round by round, or go on with the rounds in `config.out` behind what is finished.

    Args:
        training: training settings of every round's retriever; their paths are set here.

    Returns:
        All rounds and the start, which are also in `OUT/rounds.json`, with the best encoder.

    Raises:
        ConfigError: the held-out questions are a test set, or the reader or the training cannot
            work.
        DataError: no question can be trained on.
        MismatchedArtifactError: `config.out` holds rounds of other settings.
    """
    if config.held_out is not None:
        check_selection_split(config.held_out)
    judge = None
    if config.method == "distill":
        judge = open_judge(config.reader, config.signal)
    questions, held_out = _questions(config)
    trained = "colbert" if config.method == "colbert" else "dense"
    with Index.open(config.index) as source:
        searched = named_kind(config.retriever, source)
        measured = trained if set(KINDS[trained]) <= set(source.parts) else searched
        identity = source.encoder_identity
    # From the encoder of the first index, unless it names another.
    started = start_from_index(training.replaced(index=config.index))
    training = started.replaced(index=training.index)
    facts: dict[str, object] = {
        "encoder": identity.name if identity else "",
        "training starts from": training.question_encoder or EMBEDDED_ENCODER_NAMES[0],
    }
    rows: list[Round] = []
    # Nothing is written before the inputs are known to be right.
    with directory_lock(config.out):
        _claim(config, training)
        index = config.index
        encoder = None
        for number in range(config.rounds + 1):
            folder = config.out / f"round-{number}"
            if number:
                if not (folder / "retrieved.json").exists():
                    with Pipeline.open(index, reader=False, retriever=searched) as pipeline:
                        write_results(pipeline, questions, folder / "retrieved.json", config.top_k)
                facts = _examples(config, judge, folder)
                encoder = _train(config, training, folder, index, encoder)
                index = _index(config, folder, encoder)
                searched = trained
                measured = trained
            figures = _measure(index, held_out, folder / "evaluation", measured)
            round_facts = {"searched": measured, **facts}
            rows.append({"round": number, "figures": figures, "facts": round_facts})
            _write_rows(config.out, rows)
    return rows


def _questions(config: RoundsConfig) -> tuple[list[Question], list[Question]]:
    """Questions to train on, and those on which each round is measured."""
    separate = None if config.held_out is None else answered(config.held_out)
    return hold_out(
        answered(config.questions), config.validation_fraction, 0, attrgetter("text"), separate
    )


def _measure(
    index: Path, held_out: Sequence[Question], out: Path, retriever: str
) -> dict[str, float]:
    """How often an answer is in the first k passages, in percent."""
    evaluation = evaluate(index, held_out, out, split="dev", reader=False, retriever=retriever)
    return {
        name: 100.0 * interval.value
        for name, interval in evaluation.figures.items()
        if name.startswith("top")
    }


def _write_rows(out: Path, rows: Sequence[Round]) -> None:
    """Write the rounds so far, with the best of them and its encoder."""
    best = max(rows, key=lambda row: row["figures"]["top20"])["round"]
    encoder = str(out / f"round-{best}" / "retriever" / "encoder") if best else None
    atomic_write_json(out / "rounds.json", {"rounds": rows, "best": best, "encoder": encoder})


def _claim(config: RoundsConfig, training: BiEncoderConfig) -> None:
    """`config.json` says whose folder this is; the number of rounds may change."""
    sets = filter(None, (config.questions, config.held_out))
    not_learnt = {"out", "train_files", *training.free}
    settings = config.model_dump(mode="json", exclude={"out", "rounds"}) | {
        "sha256": list(map(questions_digest, sets)),
        "index_version": index_version(config.index),
        "training": training.model_dump(mode="json", exclude=not_learnt),
    }
    claim(
        config.out / "config.json",
        settings,
        "rounds with other settings",
    )


def _examples(config: RoundsConfig, judge: Judge | None, folder: Path) -> dict[str, object]:
    """Write examples of what was retrieved, scored by a reader or labelled by answers; their
    counts.
    """
    retrieved = folder / "retrieved.json"
    examples = folder / "examples.json"
    report = folder / "examples.json.report.json"
    if not examples.exists() and judge is not None:
        score_examples(retrieved, examples, judge)
    elif not examples.exists():
        counts: Counter[str] = Counter()
        ranked = read_examples(retrieved, needs="questions")
        if not write_examples(examples, guided_examples(ranked, config, counts)):
            raise DataError(
                f"no retrieved passage holds an answer: {dict(counts)}",
                hint="raise top_k and the rules of positives, or give the corpus that answers them",
            )
        atomic_write_json(report, {"counts": dict(counts)})
    return dict(read_json(report)["counts"])


def _train(
    config: RoundsConfig, training: BiEncoderConfig, folder: Path, index: Path, before: Path | None
) -> Path:
    """The encoder of a round, trained from the first encoder or that of the round before."""
    if before is None or config.restart:
        index = config.index
    else:
        training = training.replaced(
            question_encoder=str(before), passage_encoder=None, reset_layers=0
        )
    # Vectors of a frozen passage encoder stay: nothing has to be encoded again.
    is_frozen = training.frozen == "passage"
    trained = training.replaced(
        out=folder / "retriever",
        train_files=(folder / "examples.json",),
        index=index if is_frozen else None,
    )
    return Path(trained.train_model())


def _index(config: RoundsConfig, folder: Path, encoder: Path) -> Path:
    """The passages of the first index under the new encoder, with BM25 if it has that."""
    out = folder / "index"
    for built in (folder / "retriever" / "index", out):
        if (built / MANIFEST_NAME).exists():
            return built
    loaded = BiEncoder.load(encoder)
    with Index.open(config.index) as source:
        settings = BuildSettings(
            retriever="hybrid" if "bm25" in source.parts else "dense",
            index_type="plaid" if config.method == "colbert" else "flat",
        )
        origin = {"passages": source.version, "encoder": loaded.identity.weights_sha256}
        copy_rights(source.directory, out)
        write_index(out, Content(source.puts(), origin), encoder=loaded, settings=settings)
    return out
