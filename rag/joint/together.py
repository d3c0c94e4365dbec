"""Retriever and generator as one model, trained from questions and answers alone: what RAG and EMDR² share.

questions → vectors → top k of the live index → their scores with gradient → generator → loss → fit → export

The generator may also be trained alone, over the results of a fixed retriever.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from indexers.build import build_index
from indexers.index import Index
from indexers.protocols import EncodesCorpus
from indexers.settings import BuildSettings
from rag.core.errors import DataError
from rag.joint.config import JointTrainConfig
from rag.joint.finding import FixedFinder, LearningFinder
from rag.joint.live_index import LiveIndex, index_refresh
from rag.joint.questions import questions_of
from rag.joint.task import JointBatches, JointTask, Objective
from rag.training.fit import FitHooks
from rag.training.precision import part
from rag.training.run import Method, Run, Weights, train
from readers.generative.files import load_generator
from readers.generative.model import Seq2Seq
from readers.generative.settings import GeneratorManifest, GeneratorSettings
from readers.generative.training.finish import reader_card, save_reader
from retrievers.bound import QUESTION_ENCODER, binding
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.open import named_kind, open_retriever
from retrievers.training.bi_encoder import (
    BiEncoderModel,
    FrozenIndex,
    adopt_index,
    encoder_form,
    export_model,
    load_model,
)


def train_together(
    config: JointTrainConfig,
    objective: Objective,
    reads: Mapping[str, Any],
    *,
    retriever: str = "trained",
    encode: EncodesCorpus | None = None,
) -> Path:
    """Train as `config` says, or resume the run in `config.out`; see `rag.training.run.train`.

    Writes `reader/`, the generator with its question encoder; if the passage encoder is trained, also
    `encoder/` with both towers, and `index/`, the passages encoded by it.

    Args:
        reads: settings of the finished generator: how it reads several passages.
        retriever: "trained", or the kind of a fixed retriever (`retrievers.open`): then only the generator is
            trained, and `reads` has `prior_scale`, the factor on its scores whose softmax is p(z|x).
        encode: encodes the corpus at a refresh.

    Returns:
        The folder of the finished reader, `config.out / "reader"`.

    Raises:
        ConfigError: the index lacks what a fixed retriever needs.
        MismatchedArtifactError: the index was built with another encoder than the one named.
    """
    with Index.open(config.index) as index:
        kind = ""
        if retriever == "trained":
            config = adopt_index(config, index, same_encoder=True)
        else:
            kind = named_kind(retriever, index)
        return train(config, partial(_build_run, config, objective, reads, kind, index, encode), "reader")


def _build_run(
    config: JointTrainConfig,
    objective: Objective,
    reads: Mapping[str, Any],
    kind: str,
    index: Index,
    encode: EncodesCorpus | None,
    run: Run,
) -> Method:
    # model
    frozen = config.document_side == "frozen"
    retriever = None if kind else load_model(config, run.device, freeze_passages=frozen)
    scale = reads["prior_scale"] if retriever is None else retriever.scale
    seq2seq, settings = _load_generator(config, {**reads, "prior_scale": scale}, run.device)
    module = nn.ModuleDict({"generator": seq2seq.model})
    if retriever is not None:
        module = nn.ModuleDict({"retriever": retriever, "generator": seq2seq.model})
    master = run.master(module)

    # data
    questions, held_out = questions_of(config)
    if any(question.answers_are_regex for question in (*questions, *held_out)):
        raise DataError(
            "answers are regular expressions, and a generator learns to say strings",
            hint="train on questions with plain answers; `rag train orqa` learns from expressions",
        )
    hooks: FitHooks = FrozenIndex(index.version)
    finder: FixedFinder | LearningFinder
    if retriever is None:
        searched = open_retriever(index, kind, encoder=config.question_encoder, device=run.device)
        finder = FixedFinder(searched, index.passages, config.top_k, scale, run.device)
        questions, held_out = finder.answerable(questions), finder.answerable(held_out)
    else:
        live_index = LiveIndex(index)
        finder = LearningFinder(config, retriever, index, live_index)
        if config.document_side == "reencode":
            hooks = index_refresh(config, live_index, retriever, master, world=run.world, encode=encode)
    task = JointTask(
        config, module, seq2seq, settings, finder, objective, run.world, passages=len(index.passages)
    )
    batches = JointBatches(config, questions)

    def export(weights: Weights) -> None:
        manifest = GeneratorManifest(name=config.name, settings=settings)

        def bind(folder: Path) -> None:
            bound: dict[str, Any] = {"kind": kind}
            if retriever is not None:
                own = part(weights, "retriever")
                bound = _export_retriever(config, retriever, own, index, run, folder)
            manifest.model_copy(update={"retriever": bound}).save(folder)

        save_reader(run.out / "reader", seq2seq, part(weights, "generator"), manifest, add=bind)

    return Method(
        module, master, batches, lambda batch: task.loss(batch, batches.questions), export,
        reader_card(settings),
        evaluate=partial(task.measure, held_out) if held_out else None,
        hooks=(hooks,),
        facts={"questions": len(batches.questions), "held-out questions": len(held_out)},
    )  # fmt: skip


def _export_retriever(
    config: JointTrainConfig,
    retriever: BiEncoderModel,
    weights: Mapping[str, Any],
    index: Index,
    run: Run,
    reader: Path,
) -> dict[str, Any]:
    """Write the question encoder into the reader's folder and, if passages were trained too, `encoder/` and
    `index/`; returns what binds the reader to the index."""
    identity = index.require_dense().encoder
    form = replace(encoder_form(config, retriever), max_length=config.passage_tokens)
    if config.document_side != "frozen":
        export_model(run.out / "encoder", retriever, weights, form)
        encoder = BiEncoder.load(run.out / "encoder", device=run.device)
        settings = BuildSettings(index_type=config.index_type)
        build_index(iter(index.passages), run.out / "index", encoder=encoder, settings=settings)
        identity = encoder.identity
    export_model(reader / QUESTION_ENCODER, retriever, weights, form, only="question")
    return binding(reader, identity)


def _load_generator(
    config: JointTrainConfig, reads: Mapping[str, Any], device: str
) -> tuple[Seq2Seq, GeneratorSettings]:
    """The generator, and how it reads."""
    stated = {
        "template": config.template, "passage_tokens": config.reader_passage_tokens,
        "question_tokens": config.reader_question_tokens, "answer_tokens": config.answer_tokens,
        "batch_tokens": config.batch_tokens, "beams": config.beams,
    }  # fmt: skip
    stated = {name: value for name, value in stated.items() if value is not None}
    # What was trained to read passages together reads no more of them; RAG takes each by itself.
    most = config.top_k if reads["mode"] == "fid" else GeneratorSettings().max_passages
    wanted = {**stated, **reads, "no_answer": None, "max_passages": most}
    seq2seq, manifest = load_generator(
        config.generator, device=device, trains=True, dropout=config.reader_dropout, **wanted
    )
    return seq2seq, manifest.settings
