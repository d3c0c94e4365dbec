"""Adapt an index's encoder to its corpus without labelled questions: make questions, search, train."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from indexers.index import Index
from rag.adaptation.config import LEAST_QUESTIONS, AdaptConfig
from rag.adaptation.questions import MadeQuestion, make_questions
from rag.core.errors import DataError
from rag.core.manifest import claim
from rag.core.types import Passage
from rag.data.examples import Candidate, Example, write_examples
from rag.data.text import AnswerMatcher
from rag.pipeline import Pipeline
from rag.runtime.seeds import generator
from retrievers.training.bi_encoder import adopt_index
from retrievers.training.dpr import DprTrainConfig, train_dpr

QUESTIONS, SETTINGS = "questions.json", "adapt.json"
_AT_ONCE = 64  # questions that are searched for
_LOOKED_AT = 20  # passages per question, at most


def adapt_retriever(config: AdaptConfig, training: DprTrainConfig) -> Path:
    """Make questions from an index's passages and train its encoder on all of them.

    Writes into `config.out`: `adapt.json` (settings), `questions.json` (the questions with their passages,
    which `rag train` reads too), and what `train_dpr` writes. A killed run makes the questions again, which
    takes a minute, or goes on at the last checkpoint. Without vectors in the index, the encoder that
    `training` names is trained.

    Returns:
        The folder of the adapted encoder, `config.out / "encoder"`.

    Raises:
        ConfigError, MismatchedArtifactError: the index's encoder cannot be trained so, see `adopt_index`.
        DataError: the passages give too few questions.
        MismatchedArtifactError: `config.out` holds a run of other settings.

    Source:
        Ma et al. 2021, "Zero-shot Neural Passage Retrieval via Domain-targeted Synthetic Question
        Generation", section 3.
    """
    with Index.open(config.index) as index:
        if index.encoder_identity is not None:
            adopted = adopt_index(training.replaced(index=config.index), index)  # named in its errors alone
            most = min(training.passage_tokens, adopted.passage_tokens)
            training = adopted.replaced(index=training.index, passage_tokens=most)
        settings = config.model_dump(mode="json", exclude={"out", "index", "replay"})
        settings["index"] = index.version
        hint = "choose another --out, or repeat the command that started the run"
        claim(config.out / SETTINGS, settings, "an adaptation", hint=hint)
        made = [] if (config.out / QUESTIONS).exists() else _questions_of(config, index)
    if made:
        with Pipeline.open(
            config.index, retriever=config.retriever, index_encoder=config.index_encoder, reader=False
        ) as pipeline:
            write_examples(config.out / QUESTIONS, _with_negatives(pipeline, config.top_k, made))
    return train_dpr(training.replaced(out=config.out, train_files=(config.out / QUESTIONS, *config.replay)))


def _questions_of(config: AdaptConfig, index: Index) -> list[tuple[Passage, MadeQuestion]]:
    """Questions from passages in random order, each wording once."""
    passages, made = index.passages, dict[str, tuple[Passage, MadeQuestion]]()
    order = generator(config.seed, 1).permutation(len(passages))[: _LOOKED_AT * config.questions]
    for row in order:
        passage = passages[int(row)]
        for question in make_questions(passage, random.Random(f"{config.seed}:{passage.id}")):
            made.setdefault(question.text, (passage, question))
        if len(made) >= config.questions:
            break
    if len(made) < LEAST_QUESTIONS:
        raise DataError(
            f"{config.index}: its {len(passages):,} passages give {len(made):,} questions, "
            f"expected at least {LEAST_QUESTIONS}",
            hint="give an index with more English text",
        )
    return list(made.values())[: config.questions]


def _with_negatives(
    pipeline: Pipeline, top_k: int, made: Sequence[tuple[Passage, MadeQuestion]]
) -> Iterator[Example]:
    """Examples of the questions' own passages; hits without the answer are hard negatives."""
    for begin in range(0, len(made), _AT_ONCE):
        block = made[begin : begin + _AT_ONCE]
        hits = pipeline.retrieve([question.text for _, question in block], top_k)
        for (passage, question), pairs in zip(block, hits, strict=True):
            matcher = AnswerMatcher([question.answer])
            others = [
                Candidate(other, "hard_negative", rank=rank, score=round(hit.score, 5))
                for rank, (hit, other) in enumerate(pairs, start=1)
                if other.id != passage.id and not matcher.matches(other.text)
            ]
            name = f"{passage.id}:{question.start}:{question.kind}"
            yield Example.labelled(name, question.text, [question.answer], [passage], others)
