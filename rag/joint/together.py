"""Retriever and generator as one model, trained from questions and answers alone: what RAG and EMDR² share.

questions → vectors → top k of the index held → their scores with gradient → generator → loss → fit → export

The generator may also be trained alone, over what a retriever finds that stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from indexers.build import build_index
from indexers.index import Index
from indexers.settings import BuildSettings
from rag.core.log import get_logger
from rag.core.types import Question
from rag.joint.finding import FixedFinder, LearningFinder
from rag.joint.live_index import HeldIndex, held_run, index_exchange
from rag.joint.pair import paired, part
from rag.joint.questions import questions_of
from rag.joint.task import JointBatches, JointTask, Objective
from rag.joint.together_config import JointTrainConfig
from rag.runtime.hardware import resolve_precision
from rag.training.claim import claimed
from rag.training.distributed import World
from rag.training.fit import FitHooks, FitResult, fit
from rag.training.hooks import SeveralHooks
from rag.training.precision import MasterWeights, lowered
from rag.training.refresh.processes import Role
from readers.generative.files import load_generator
from readers.generative.model import Seq2Seq
from readers.generative.settings import GeneratorManifest, GeneratorSettings
from readers.generative.training.finish import save_reader
from retrievers.bound import QUESTION_ENCODER, binding
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.open import named_kind, open_retriever
from retrievers.training.frozen import FrozenIndex
from retrievers.training.run import encoder_form, export_model, final_figures, load_model

log = get_logger(__name__)


def train_together(
    config: JointTrainConfig, objective: Objective, reads: Mapping[str, Any], *, role: Role = "both"
) -> Path:
    """Train as `config` says, or resume the run that `config.out` holds.

    Writes `reader/`, the generator with its question encoder; where passages are trained also `encoder/`,
    both towers, and `index/`, the passages under it.

    Args:
        reads: settings of the finished generator: how it reads several passages.
        role: "both" refreshes in line; "trainer" leaves that to `refresh_index` in another process.

    Returns:
        The folder of the finished reader, `config.out / "reader"`.

    Raises:
        MismatchedArtifactError: the index was built with another encoder than the one named.
    """
    with held_run(config, role) as (known, world, index):
        return _train(known, objective, reads, role, world, index)


def train_generator_alone(
    config: JointTrainConfig, objective: Objective, reads: Mapping[str, Any], retriever: str, scale: float
) -> Path:
    """Train the generator over what a retriever of the index finds, or resume the run in `config.out`.

    Writes `reader/`, the generator.

    Args:
        config, objective, reads: as in `train_together`.
        retriever: its kind, see `retrievers.open`.
        scale: factor on its scores, whose softmax is then p(z|x).

    Raises:
        ConfigError: the index lacks what this kind of retriever needs.
    """
    with claimed(config) as world, Index.open(config.index) as index:
        kind = named_kind(retriever, index)
        fixed = open_retriever(index, kind, encoder=config.model.question_encoder, device=world.device)
        finder = FixedFinder(fixed, index.passages, config.top_k, scale, world.device)
        seq2seq, settings, full = _generator(config, {**reads, "prior_scale": scale}, world.device)
        module = nn.ModuleDict({"generator": seq2seq.model})
        master = MasterWeights(module, {f"generator.{name}": tensor for name, tensor in full.items()})
        train, held_out = (finder.finds(questions) for questions in questions_of(config))
        task = JointTask(
            config, module, seq2seq, settings, finder, objective, world, passages=len(index.passages)
        )
        hooks = FrozenIndex(index.version)
        result = _fit(config, task, module, master, train, held_out, hooks)
        if world.is_main:
            _save_reader(config, seq2seq, settings, full, result, lambda _: {"kind": kind})
        world.barrier()
    return config.out / "reader"


def _train(
    config: JointTrainConfig,
    objective: Objective,
    reads: Mapping[str, Any],
    role: Role,
    world: World,
    index: Index,
) -> Path:
    # model
    frozen = config.document_side == "frozen"
    retriever, own = load_model(config, world.device, freeze_passages=frozen)
    seq2seq, settings, full = _generator(config, {**reads, "prior_scale": retriever.scale}, world.device)
    module, master = paired(retriever, own, seq2seq.model, full, name="generator")

    # data
    train, held_out = questions_of(config)
    held = HeldIndex(index)
    finder = LearningFinder(config, retriever, index, held)
    task = JointTask(config, module, seq2seq, settings, finder, objective, world, passages=len(held.passages))

    # fit
    hooks: FitHooks = FrozenIndex(index.version)
    if config.document_side == "reencode":
        hooks = index_exchange(config, held, index, retriever, master, world=world, role=role)
    result = _fit(config, task, module, master, train, held_out, hooks)

    # export
    if world.is_main:
        identity = index.encoder_identity
        form = replace(encoder_form(config, retriever), max_length=config.model.passage_tokens)
        weights = part(result.weights, "retriever")
        if not frozen:
            export_model(config.out / "encoder", retriever, weights, form)
            encoder = BiEncoder.load(config.out / "encoder", device=world.device)
            built = BuildSettings(index_type=config.index_type)
            build_index(iter(index.passages), config.out / "index", encoder=encoder, settings=built)
            identity = encoder.identity
        assert identity is not None
        known = identity

        def add(folder: Path) -> dict[str, Any]:
            export_model(folder / QUESTION_ENCODER, retriever, weights, form, only="question")
            return binding(folder, known)

        _save_reader(config, seq2seq, settings, full, result, add)
    world.barrier()
    return config.out / "reader"


def _fit(
    config: JointTrainConfig,
    task: JointTask,
    module: nn.Module,
    master: MasterWeights,
    train: list[Question],
    held_out: list[Question],
    hooks: FitHooks,
) -> FitResult:
    batches = JointBatches(config, *task.teachable(train))
    log.info("%d questions, %d held out, %d batches", len(batches.questions), len(held_out), len(batches))
    return fit(
        module, master, batches, lambda _, batch: task.loss(batch, batches.questions), config.optim,
        config.run, config.out, evaluate=(lambda _: task.measure(held_out)) if held_out else None,
        hooks=SeveralHooks(hooks, task.watch), world=task.world,
    )  # fmt: skip


def _save_reader(
    config: JointTrainConfig,
    seq2seq: Seq2Seq,
    settings: GeneratorSettings,
    full: Mapping[str, Tensor],
    result: FitResult,
    bind: Callable[[Path], dict[str, Any]],
) -> None:
    """Write the finished reader; `bind` says what it was trained with, and may write that into its folder."""
    manifest = GeneratorManifest(name=config.name, settings=settings)

    def add(folder: Path) -> None:
        manifest.model_copy(update={"retriever": bind(folder)}).save(folder)

    told = {**full, **part(result.weights, "generator")}
    shown = {**final_figures(config, result.chosen_step), "steps": result.chosen_step}
    save_reader(config.out / "reader", seq2seq, told, manifest, shown, recipe=config.recipe, add=add)


def _generator(
    config: JointTrainConfig, reads: Mapping[str, Any], device: str
) -> tuple[Seq2Seq, GeneratorSettings, dict[str, Tensor]]:
    """The generator in the precision it is trained in, how it reads, and its weights in fp32."""
    given = config.reader.model_dump(exclude={"generator", "dropout"}, exclude_none=True)
    # What was trained to read passages together reads no more of them; RAG takes each by itself.
    most = config.top_k if reads["mode"] == "fid" else GeneratorSettings().max_passages
    wanted = {**given, **reads, "no_answer": None, "max_passages": most}
    model, tokenizer, said = load_generator(
        config.reader.generator, dropout=config.reader.dropout, train_on=device, **wanted
    )
    full = lowered(model.to(device), resolve_precision(config.optim.precision, device))
    return Seq2Seq(model, tokenizer), said.settings, full
