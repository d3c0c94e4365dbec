"""Retriever and generator as one model, trained from questions and answers alone: what RAG and EMDR² share.

questions → vectors → top k of the live index → their scores with gradient → generator → loss → fit → export

The generator may also be trained alone, over the results of a fixed retriever.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from indexers.build import build_index
from indexers.embeddings import encode_corpus
from indexers.index import Index
from indexers.protocols import EncodesCorpus
from indexers.settings import BuildSettings
from rag.core.types import Question
from rag.joint.config import JointTrainConfig
from rag.joint.finding import FixedFinder, LearningFinder
from rag.joint.live_index import LiveIndex, index_exchange
from rag.joint.questions import questions_of
from rag.joint.task import JointBatches, JointTask, Objective
from rag.training.fit import FitHooks
from rag.training.precision import MasterWeights, part
from rag.training.refresh.processes import TrainerRole
from rag.training.run import Method, Run, Trained, several, train
from readers.generative.files import load_generator, open_network
from readers.generative.model import Seq2Seq
from readers.generative.settings import GeneratorManifest, GeneratorSettings
from readers.generative.training.finish import reader_card, save_reader
from retrievers.bound import QUESTION_ENCODER, binding
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.open import named_kind, open_retriever
from retrievers.training.bi_encoder import adopt_index, encoder_form, export_model, load_model
from retrievers.training.frozen import FrozenIndex


def train_together(
    config: JointTrainConfig,
    objective: Objective,
    reads: Mapping[str, Any],
    *,
    role: TrainerRole = "both",
    encode: EncodesCorpus = encode_corpus,
) -> Path:
    """Train as `config` says, or resume the run in `config.out`; see `rag.training.run.train`.

    Writes `reader/`, the generator with its question encoder; if the passage encoder is trained, also
    `encoder/` with both towers, and `index/`, the passages encoded by it.

    Args:
        reads: settings of the finished generator: how it reads several passages.
        role: "both" refreshes the index in this process; "trainer" leaves that to `refresh_index` in another.
        encode: encodes the corpus at a refresh in this process.

    Returns:
        The folder of the finished reader, `config.out / "reader"`.

    Raises:
        MismatchedArtifactError: the index was built with another encoder than the one named.
    """
    with Index.open(config.index) as index:
        adopted = adopt_index(config, index, same_encoder=True)
        return train(
            adopted, partial(_both, adopted, objective, reads, role, index, encode), "reader", role=role
        )


def train_generator_alone(
    config: JointTrainConfig, objective: Objective, reads: Mapping[str, Any], retriever: str, scale: float
) -> Path:
    """Train the generator over the results of a fixed retriever, or resume the run in `config.out`.

    Writes `reader/`, the generator.

    Args:
        config, objective, reads: as in `train_together`.
        retriever: kind of the retriever, see `retrievers.open`.
        scale: factor on its scores, whose softmax is then p(z|x).

    Raises:
        ConfigError: the index lacks what this kind of retriever needs.
    """
    with Index.open(config.index) as index:
        kind = named_kind(retriever, index)
        return train(config, partial(_alone, config, objective, reads, kind, scale, index), "reader")


def _alone(
    config: JointTrainConfig,
    objective: Objective,
    reads: Mapping[str, Any],
    kind: str,
    scale: float,
    index: Index,
    run: Run,
) -> Method:
    retriever = open_retriever(index, kind, encoder=config.model.question_encoder, device=run.device)
    finder = FixedFinder(retriever, index.passages, config.top_k, scale, run.device)
    seq2seq, settings = _generator(config, {**reads, "prior_scale": scale}, run.device)
    module = nn.ModuleDict({"generator": seq2seq.model})
    master = run.master(module)
    train_questions, held_out = (finder.answerable(questions) for questions in questions_of(config))
    task = JointTask(
        config, module, seq2seq, settings, finder, objective, run.world, passages=len(index.passages)
    )

    def export(trained: Trained) -> None:
        _save_reader(config, seq2seq, settings, trained, lambda _: {"kind": kind})

    return _method(config, task, master, train_questions, held_out, FrozenIndex(index.version), export)


def _both(
    config: JointTrainConfig,
    objective: Objective,
    reads: Mapping[str, Any],
    role: TrainerRole,
    index: Index,
    encode: EncodesCorpus,
    run: Run,
) -> Method:
    # model
    frozen = config.document_side == "frozen"
    retriever = load_model(config, run.device, freeze_passages=frozen)
    seq2seq, settings = _generator(config, {**reads, "prior_scale": retriever.scale}, run.device)
    module = nn.ModuleDict({"retriever": retriever, "generator": seq2seq.model})
    master = run.master(module)

    # data
    live_index = LiveIndex(index)
    finder = LearningFinder(config, retriever, index, live_index)
    task = JointTask(
        config, module, seq2seq, settings, finder, objective, run.world, passages=len(live_index.passages)
    )
    hooks: FitHooks = FrozenIndex(index.version)
    if config.document_side == "reencode":
        hooks = index_exchange(
            config, live_index, index, retriever, master, world=run.world, role=role, encode=encode
        )

    def export(trained: Trained) -> None:
        identity = index.require_dense().encoder
        form = replace(encoder_form(config, retriever), max_length=config.model.passage_tokens)
        weights = part(trained.weights, "retriever")
        if not frozen:
            export_model(run.out / "encoder", retriever, weights, form)
            encoder = BiEncoder.load(run.out / "encoder", device=run.device)
            built = BuildSettings(index_type=config.index_type)
            build_index(iter(index.passages), run.out / "index", encoder=encoder, settings=built)
            identity = encoder.identity

        def bind(folder: Path) -> dict[str, Any]:
            export_model(folder / QUESTION_ENCODER, retriever, weights, form, only="question")
            return binding(folder, identity)

        _save_reader(config, seq2seq, settings, trained, bind)

    return _method(config, task, master, *questions_of(config), hooks, export)


def _method(
    config: JointTrainConfig,
    task: JointTask,
    master: MasterWeights,
    questions: list[Question],
    held_out: list[Question],
    hooks: FitHooks,
    export: Callable[[Trained], None],
) -> Method:
    batches = JointBatches(config, *task.teachable(questions))
    task.find_targets(held_out)
    return Method(
        task.module, master, batches, lambda batch: task.loss(batch, batches.questions), export,
        reader_card(task.settings),
        evaluate=partial(task.measure, held_out) if held_out else None,
        hooks=several(hooks, task.watch),
        facts={"questions": len(batches.questions), "held-out questions": len(held_out)},
    )  # fmt: skip


def _save_reader(
    config: JointTrainConfig,
    seq2seq: Seq2Seq,
    settings: GeneratorSettings,
    trained: Trained,
    bind: Callable[[Path], dict[str, Any]],
) -> None:
    """Write the finished reader; `bind` says what it was trained with, and may write that into its folder."""
    manifest = GeneratorManifest(name=config.name, settings=settings)

    def add(folder: Path) -> None:
        manifest.model_copy(update={"retriever": bind(folder)}).save(folder)

    save_reader(config.out / "reader", seq2seq, part(trained.weights, "generator"), manifest, add=add)


def _generator(
    config: JointTrainConfig, reads: Mapping[str, Any], device: str
) -> tuple[Seq2Seq, GeneratorSettings]:
    """The generator, and how it reads."""
    given = config.reader.model_dump(exclude={"generator", "dropout"}, exclude_none=True)
    # What was trained to read passages together reads no more of them; RAG takes each by itself.
    most = config.top_k if reads["mode"] == "fid" else GeneratorSettings().max_passages
    wanted = {**given, **reads, "no_answer": None, "max_passages": most}
    model, tokenizer, manifest = load_generator(
        config.reader.generator, dropout=config.reader.dropout, train_on=device, **wanted
    )
    return open_network(model.to(device), tokenizer, manifest.settings), manifest.settings
