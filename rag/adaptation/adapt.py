"""Adapt an index's encoder to its corpus without labelled questions: make questions, search,
train.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from indexers.index import Index
from rag.adaptation.questions import MadeQuestion, make_questions
from rag.config import DEFAULT_SEED
from rag.core.errors import ConfigError, DataError
from rag.core.manifest import claim
from rag.core.types import Passage
from rag.data.examples import Candidate, Example, write_examples
from rag.data.text import AnswerMatcher
from rag.pipeline import Pipeline
from rag.recipes import read_config
from rag.runtime.seeds import Stream, generator
from retrievers.training.bi_encoder import adopt_index
from retrievers.training.config import DprTrainConfig

QUESTIONS = "questions.json"
SETTINGS = "adapt.json"
# A training on fewer says nothing.
LEAST_QUESTIONS = 50
# Passages retrieved for each question; those without the answer are hard negatives.
_TOP_K = 4
# Questions that are searched for together.
_AT_ONCE = 64
# Passages per question that are looked at, at most.
_LOOKED_AT = 20


def adapt(
    index: str | Path,
    out: str | Path,
    *,
    config: str | Path | None = None,
    training: Mapping[str, object] | None = None,
    questions: int = 2000,
    seed: int = DEFAULT_SEED,
) -> Path:
    """Make questions from an index's passages and train its encoder on all of them: `rag adapt`.

    Writes `questions.json`, which `rag train` reads too, and a resumable run; returns its encoder's
    folder.

    Args:
        config: settings of the training, a file or preset; "retriever-adapt" by default.
        training: settings of `rag.train("dpr", …)`, which override `config`.
        questions: number of questions that are made, at least 50.
        seed: random seed of passages, questions and their wording.

    Raises:
        ConfigError, DataError: too few questions are asked for, or given by the passages.
        MismatchedArtifactError: the encoder cannot be trained so, or `out` holds a run of other
            settings.

    Source: Ma et al. 2021, "Zero-shot Neural Passage Retrieval via Domain-targeted Synthetic
        Question Generation", section 3.
    """
    if questions < LEAST_QUESTIONS:
        raise ConfigError(f"questions is {questions}, expected at least {LEAST_QUESTIONS}")
    out = Path(out)
    file = out / QUESTIONS
    settings = {**(training or {}), "out": out, "train_files": (file,)}
    recipe = read_config(DprTrainConfig, config or "retriever-adapt", settings)
    with Pipeline.open(index, reader=False) as pipeline:
        opened = pipeline.index
        if opened.encoder_identity is not None:
            # The index is named in errors alone.
            adopted = adopt_index(recipe.replaced(index=Path(index)), opened)
            passage_tokens = min(recipe.passage_tokens, adopted.passage_tokens)
            recipe = adopted.replaced(index=recipe.index, passage_tokens=passage_tokens)
        run = {"questions": questions, "seed": seed, "index": opened.version}
        claim(out / SETTINGS, run, "an adaptation with other settings")
        if not file.exists():
            made = _questions_of(opened, questions, seed)
            write_examples(file, _with_negatives(pipeline, made))
    return recipe.train_model()


def _questions_of(index: Index, count: int, seed: int) -> list[tuple[Passage, MadeQuestion]]:
    """Questions from passages in random order, each wording once."""
    passages = index.passages
    made: dict[str, tuple[Passage, MadeQuestion]] = {}
    order = generator(seed, Stream.ADAPTED_PASSAGES).permutation(len(passages))[
        : _LOOKED_AT * count
    ]
    for row in order.tolist():
        passage = passages[row]
        for question in make_questions(passage, random.Random(f"{seed}:{passage.id}")):
            made.setdefault(question.text, (passage, question))
        if len(made) >= count:
            break
    if len(made) < LEAST_QUESTIONS:
        raise DataError(
            f"{index.directory}: its {len(passages):,} passages give {len(made):,} questions, "
            f"expected at least {LEAST_QUESTIONS}",
            hint="give an index with more English text",
        )
    return list(made.values())[:count]


def _with_negatives(
    pipeline: Pipeline, made: Sequence[tuple[Passage, MadeQuestion]]
) -> Iterator[Example]:
    """Examples of the questions' own passages; hits without the answer are hard negatives."""
    for begin in range(0, len(made), _AT_ONCE):
        block = made[begin : begin + _AT_ONCE]
        hits = pipeline.retrieve_many([question.text for _, question in block], _TOP_K)
        for (passage, question), pairs in zip(block, hits, strict=True):
            matcher = AnswerMatcher([question.answer])
            others = []
            for rank, (hit, other) in enumerate(pairs, start=1):
                if other.id != passage.id and not matcher.matches(other.text):
                    score = round(hit.score, 5)
                    others.append(Candidate(other, "hard_negative", rank=rank, score=score))
            name = f"{passage.id}:{question.start}:{question.kind}"
            yield Example.labelled(name, question.text, [question.answer], [passage], others)
