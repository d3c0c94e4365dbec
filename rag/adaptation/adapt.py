"""Adapt a reader or a retriever to a corpus without labelled questions: make questions, judge them, train."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

from indexers.index import Index
from rag.adaptation.agreement import Made, agreeing
from rag.adaptation.choices import KINDS, SOURCES
from rag.adaptation.config import AdaptConfig
from rag.adaptation.questions import make_questions
from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_write_json, directory_lock, read_json, sha256_file
from rag.core.log import get_logger
from rag.core.manifest import claim
from rag.data.examples import write_examples
from rag.data.questions import read_questions
from rag.pipeline import Pipeline
from rag.runtime.seeds import generator
from readers.extractive.files import SHIPPED_READER
from readers.extractive.settings import ReaderManifest
from readers.extractive.training.config import ReaderTrainConfig, TrainingSet
from readers.extractive.training.recipe import train_reader
from readers.manifest import READER_FILE, load_manifest
from retrievers.negatives.blocks import BlockFolder
from retrievers.training.bi_encoder import adopt_index
from retrievers.training.config import DprTrainConfig
from retrievers.training.dpr import train_dpr

QUESTIONS, REPORT, SETTINGS = "questions.json", "questions.report.json", "adapt.json"
_BLOCK = 64  # questions: what a stop can lose of the search and the reading
_LEAST = 50  # kept questions
_LOOKED_AT = 20  # passages per question wanted, at most
_REPLAYED = 2.0  # questions of other sets for each made one, at most
_log = get_logger(__name__)


def adapt_reader(config: AdaptConfig, training: ReaderTrainConfig) -> Path:
    """Make questions from an index's passages, keep those that agree, and train the reader on them.

    Writes into `config.out`: `adapt.json` (settings), `questions.json` (the kept questions with their
    passages, which `rag train` reads too), `questions.report.json` (counts), and what `train_reader` writes.
    A killed run loses at most 64 questions, or what was trained since the last checkpoint.

    Args:
        training: the reader's training; its sets, the reader that it starts from and the outputs of this
            are set here.

    Returns:
        The folder of the adapted reader, `config.out / "reader"`.

    Raises:
        ConfigError: the reader cannot be trained further.
        DataError: the passages give no questions, or too few are kept.
        MismatchedArtifactError: `config.out` holds a run of other settings.

    Source:
        Alberti et al. 2019, "Synthetic QA Corpora Generation with Roundtrip Consistency".
    """
    start = Path(config.reader) if config.reader is not None else SHIPPED_READER
    if not (start / READER_FILE).exists():
        raise ConfigError(
            f"{start} is no reader that can be trained further",
            hint="give a folder of `rag train reader`, or none for the shipped reader",
        )
    manifest = load_manifest(ReaderManifest, start)
    with directory_lock(config.out / "questions"):
        counts = _make(config, {"reader": sha256_file(start / READER_FILE)})
    made = TrainingSet(questions=config.out / QUESTIONS, name="made", positives="gold", held_out=0.0)
    replayed = [_replayed(path, counts["kept"]) for path in config.replay]
    same = ("answer_types", "skim_layer", "question_tokens", "title_tokens")
    outputs = {name: getattr(manifest.settings, name) for name in same}
    model = training.model.model_copy(update={"encoder": str(start), **outputs})
    return train_reader(training.replaced(out=config.out, train=(made, *replayed), model=model))


def adapt_retriever(config: AdaptConfig, training: DprTrainConfig) -> Path:
    """Make questions from an index's passages and train its encoder on all of them; see `adapt_reader`.

    Without vectors in the index, the encoder that `training` names is trained.

    Returns:
        The folder of the adapted encoder, `config.out / "encoder"`.

    Raises:
        ConfigError, MismatchedArtifactError: the index's encoder cannot be trained so, see `adopt_index`.
        DataError: the passages give no questions, or too few.
        MismatchedArtifactError: `config.out` holds a run of other settings.

    Source:
        Ma et al. 2021, "Zero-shot Neural Passage Retrieval via Domain-targeted Synthetic Question
        Generation", section 3.
    """
    with Index.open(config.index) as index:
        if index.encoder_identity is not None:
            adopted = adopt_index(training.replaced(index=config.index), index)  # named in its errors alone
            most = min(training.model.passage_tokens, adopted.model.passage_tokens)
            training = adopted.replaced(index=training.index, passage_tokens=most)
    with directory_lock(config.out / "questions"):
        _make(config, {})
    return train_dpr(training.replaced(out=config.out, train_files=(config.out / QUESTIONS, *config.replay)))


def report_lines(out: Path) -> list[str]:
    """What `questions.report.json` states, for the terminal."""
    counts = Counter(read_json(out / REPORT))
    kinds = {name.removeprefix("kept "): count for name, count in counts.items() if name.startswith("kept ")}
    shown = ", ".join(f"{name} {count:,}" for name, count in sorted(kinds.items()))
    return [
        f"{counts['made']:,} questions made, {counts['retrieved']:,} whose passage is retrieved, "
        f"{counts['kept']:,} kept ({shown}): {out / QUESTIONS}"
    ]


def _make(config: AdaptConfig, inputs: Mapping[str, str]) -> Counter[str]:
    """Write the questions, unless an earlier run did; the counts of the report."""
    with Index.open(config.index) as index:
        settings = config.model_dump(mode="json", exclude={"out", "index", "reader", "replay"})
        settings |= {"index": index.version, **inputs}
        hint = "choose another --out, or repeat the command that started the run"
        claim(config.out / SETTINGS, json.loads(json.dumps(settings)), "an adaptation", hint=hint)
        if (config.out / QUESTIONS).exists():
            return Counter(read_json(config.out / REPORT))
        made = list(_made(config, index))
        if not made:
            others = [kind for kind in KINDS if kind not in config.kinds]
            raise DataError(
                f"{config.index}: its {len(index.passages):,} passages have no "
                f"{' and no '.join(SOURCES[kind] for kind in config.kinds)} to make questions from",
                hint=f"try --kinds {','.join(others)}" if others else "give an index with more English text",
            )
    blocks = BlockFolder(config.out / "questions" / "blocks", settings)
    reads = config.model == "reader"
    pipeline = Pipeline.open(
        config.index, retriever=config.retriever, index_encoder=config.index_encoder,
        reader=config.reader if reads else False,
    )  # fmt: skip
    with closing(pipeline):
        keep = partial(
            agreeing, search=pipeline.retrieve, reader=pipeline.reader, top_k=config.top_k,
            least_f1=config.agreement,
        )  # fmt: skip
        verb = "search and read" if reads else "search"
        blocks.fill(made, keep, total=len(made), size=_BLOCK, unit="questions", verb=verb)
    counts = blocks.counts()
    if counts["kept"] < _LEAST:
        raise DataError(
            f"{counts['kept']} of {counts['made']:,} made questions are kept, expected at least {_LEAST} "
            f"({counts['retrieved']:,} of them have their passage in the first {config.top_k})",
            hint="raise --questions or --top-k, or give an index with more text",
        )
    atomic_write_json(config.out / REPORT, dict(counts))
    write_examples(config.out / QUESTIONS, blocks.examples())
    blocks.remove()
    return counts


def _made(config: AdaptConfig, index: Index) -> Iterator[Made]:
    """Questions from passages in random order, each wording once."""
    passages, seen = index.passages, set[str]()
    order = generator(config.seed, 1).permutation(len(passages))[: _LOOKED_AT * config.questions]
    for row in order:
        passage = passages[int(row)]
        draw = random.Random(f"{config.seed}:{passage.id}")
        for one in make_questions(passage, draw, config.kinds, config.per_passage):
            if one.text not in seen:
                seen.add(one.text)
                yield passage, one
                if len(seen) == config.questions:
                    return


def _replayed(path: Path, kept: int) -> TrainingSet:
    count = sum(bool(question.answers) for question in read_questions(path))
    return TrainingSet(questions=path, weight=min(1.0, _REPLAYED * kept / max(1, count)), held_out=0.0)
