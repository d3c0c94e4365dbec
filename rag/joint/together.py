"""Retriever and generator as one model, trained from questions and answers alone: what RAG and
EMDR² share.

questions → vectors → top k of the live index → their scores with gradient → generator → loss → fit
→ export

The generator may also be trained alone, over the results of a fixed retriever.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.protocols import EncodesCorpus
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError, DataError
from rag.data.text import REGEX_PROFILE
from rag.joint.config import EmdrTrainConfig, JointTrainConfig, RagTrainConfig
from rag.joint.finding import FixedFinder, LearningFinder, LiveIndex, index_refresh
from rag.joint.losses import emdr2_loss, rag_loss
from rag.joint.questions import questions_of
from rag.joint.task import JointBatches, JointTask, Objective
from rag.training.distributed import World
from rag.training.fit import FitHooks, Method, Weights
from rag.training.precision import MasterWeights, part
from rag.training.run import train
from readers.generative.files import load_generator
from readers.generative.model import Seq2Seq
from readers.generative.settings import GeneratorManifest, GeneratorSettings
from readers.generative.training.recipe import reader_card, save_reader
from retrievers.bound import QUESTION_ENCODER, binding
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.open import named_kind, open_retriever
from retrievers.training.bi_encoder import (
    BiEncoderModel,
    adopt_index,
    encoder_form,
    export_model,
    load_model,
)


def train_rag(config: RagTrainConfig, *, encode: EncodesCorpus | None = None) -> Path:
    """Train RAG, or resume the run that `config.out` holds; see `rag.training.run.train`.

    Writes `reader/`, the generator with its question encoder; if the passage encoder is trained too
    (end to end), also `encoder/` with both towers, and `index/`, the passages encoded by it. With a
    fixed `retriever` only the generator is trained.

    Args:
        encode: encodes the corpus at a refresh.

    Returns:
        The folder of the finished reader, `config.out / "reader"`.

    Raises:
        ConfigError: the index lacks what a fixed retriever needs.
        MismatchedArtifactError: the index was built with another encoder than the one named.

    Source:
        Lewis et al. 2020, "Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks"; end
        to end: Siriwardhana et al. 2023, "Improving the Domain Adaptation of Retrieval Augmented
        Generation (RAG) Models for Open Domain Question Answering".

    Note:
        One of a question's answers is drawn each time, where the paper makes an example of every
        pair.
    """
    batch_tokens = config.batch_tokens or 8192
    objective = partial(
        rag_loss, config.marginal, smoothing=config.smoothing, batch_tokens=batch_tokens
    )
    reads = {"mode": f"rag-{config.marginal}", "prior_scale": config.prior_scale}
    return _train(config, objective, reads, config.retriever, encode)


def train_emdr2(config: EmdrTrainConfig, *, encode: EncodesCorpus | None = None) -> Path:
    """Train a retriever and a Fusion-in-Decoder reader in the same steps (EMDR²); see `train_rag`.

    Source:
        Sachan et al. 2021, "End-to-End Training of Multi-Document Reader and Retriever for
        Open-Domain Question Answering".
    """
    objective = partial(emdr2_loss, config.marginal, batch_tokens=config.batch_tokens or 8192)
    return _train(config, objective, {"mode": "fid"}, "trained", encode)


def _train(
    config: JointTrainConfig,
    objective: Objective,
    reads: Mapping[str, Any],
    retriever: str,
    encode: EncodesCorpus | None,
) -> Path:
    with Index.open(config.index) as index:
        kind = "" if retriever == "trained" else named_kind(retriever, index)
        if not kind:
            config = adopt_index(config, index, same_encoder=True)
        if config.top_k > len(index.passages):
            raise ConfigError(
                f"top_k is {config.top_k}, the index has {len(index.passages)} passages"
            )
        return train(
            config, partial(build, config, objective, reads, kind, index, encode), "reader"
        )


def build(
    config: JointTrainConfig,
    objective: Objective,
    reads: Mapping[str, Any],
    kind: str,
    index: Index,
    encode: EncodesCorpus | None,
    world: World,
) -> Method:
    """The method of `train_rag` and `train_emdr2`."""
    # model
    frozen = config.document_side == "frozen"
    retriever = None if kind else load_model(config, world.device, freeze_passages=frozen)
    scale = reads["prior_scale"] if retriever is None else retriever.scale
    seq2seq, settings = _load_generator(config, {**reads, "prior_scale": scale}, world.device)
    module = nn.ModuleDict({"generator": seq2seq.model})
    if retriever is not None:
        module = nn.ModuleDict({"retriever": retriever, "generator": seq2seq.model})
    master = MasterWeights(module, config.precision)

    # data
    questions, held_out = questions_of(config)
    if any(question.answer_profile == REGEX_PROFILE for question in (*questions, *held_out)):
        raise DataError(
            "answers are regular expressions, and a generator learns to say strings",
            hint="train on questions with plain answers; `rag train orqa` learns from expressions",
        )
    hooks = FitHooks()
    finder: FixedFinder | LearningFinder
    if retriever is None:
        searched = open_retriever(index, kind, encoder=config.question_encoder, device=world.device)
        finder = FixedFinder(searched, index, config.top_k, scale, world.device)
        questions, held_out = finder.answerable(questions), finder.answerable(held_out)
    else:
        live_index = LiveIndex(index)
        finder = LearningFinder(config, retriever, index, live_index)
        if not frozen and config.refresh_every_steps:
            hooks = index_refresh(config, live_index, retriever, master, world=world, encode=encode)
    task = JointTask(config, module, seq2seq, settings, finder, objective, world)
    batches = JointBatches(config, questions)

    return Method(
        model=module,
        master=master,
        batches=batches,
        loss=lambda batch: task.loss(batch, batches.questions),
        export=partial(_export, config, index, kind, retriever, seq2seq, settings),
        card=reader_card(settings),
        evaluate=partial(task.measure, held_out) if held_out else None,
        hooks=hooks,
        facts={"questions": len(batches.questions), "held-out questions": len(held_out)},
        shares=True,
    )


def _export(
    config: JointTrainConfig,
    index: Index,
    kind: str,
    retriever: BiEncoderModel | None,
    seq2seq: Seq2Seq,
    settings: GeneratorSettings,
    weights: Weights,
) -> None:
    """Write the reader, bound to the search that it was trained with; end to end also encoder and
    index.
    """

    def bind(folder: Path) -> None:
        bound: dict[str, Any] = {"kind": kind}
        if retriever is not None:  # bind the reader to the index whose passages it was trained with
            identity, own = index.require_dense().encoder, part(weights, "retriever")
            form = replace(encoder_form(retriever), max_length=config.passage_tokens)
            if config.document_side != "frozen":
                export_model(config.out / "encoder", retriever, own, form)
                encoder = BiEncoder.load(config.out / "encoder", device=retriever.device)
                flat = BuildSettings(index_type="flat")
                write_index(config.out / "index", index.puts(), encoder=encoder, settings=flat)
                identity = encoder.identity
            export_model(folder / QUESTION_ENCODER, retriever, own, form, only="question")
            bound = binding(folder, identity)
        manifest.model_copy(update={"retriever": bound}).save(folder)

    manifest = GeneratorManifest(name=config.name, settings=settings)
    save_reader(config.out / "reader", seq2seq, part(weights, "generator"), manifest, add=bind)


def _load_generator(
    config: JointTrainConfig, reads: Mapping[str, Any], device: str
) -> tuple[Seq2Seq, GeneratorSettings]:
    """The generator, and how it reads."""
    stated = {
        "template": config.template,
        "passage_tokens": config.reader_passage_tokens,
        "question_tokens": config.reader_question_tokens,
        "answer_tokens": config.answer_tokens,
        "batch_tokens": config.batch_tokens,
    }
    stated = {name: value for name, value in stated.items() if value is not None}
    # What was trained to read passages together reads no more of them; RAG takes each by itself.
    most = config.top_k if reads["mode"] == "fid" else GeneratorSettings().max_passages
    overrides = {**stated, **reads, "no_answer": None, "max_passages": most}
    seq2seq, manifest = load_generator(
        config.generator, device=device, trains=True, dropout=config.reader_dropout, **overrides
    )
    return seq2seq, manifest.settings
