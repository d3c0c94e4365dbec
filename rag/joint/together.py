"""Retriever and generator as one model, trained from questions and answers alone: what RAG and EMDR² share.

questions → vectors → top k of the index held → their scores with gradient → generator → loss → fit → export
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from indexers.build import BuildSettings, build_index
from indexers.index import Index
from rag.core.log import get_logger
from rag.joint.held import HeldIndex, held_run, index_exchange
from rag.joint.pair import paired, part
from rag.joint.questions import questions_of
from rag.joint.task import JointBatches, JointTask, Objective
from rag.joint.together_config import JointTrainConfig
from rag.runtime.hardware import resolve_precision
from rag.training.distributed import World
from rag.training.exchange import Role
from rag.training.fit import FitHooks, fit
from readers.generative.files import check_rows, load_seq2seq
from readers.generative.model import Seq2Seq
from readers.generative.settings import GeneratorManifest, GeneratorSettings
from readers.generative.training.finish import save_reader
from readers.manifest import READER_FILE, load_manifest, with_overrides
from retrievers.bound import QUESTION_ENCODER, binding
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.frozen import FrozenIndex
from retrievers.training.run import encoder_form, export_model, final_figures, load_model

__all__ = ["train_together"]

log = get_logger(__name__)


def train_together(
    config: JointTrainConfig, objective: Objective, reads: Mapping[str, Any], *, role: Role = "both"
) -> Path:
    """Train as `config` says, or resume the run that `config.out` holds.

    Writes `reader/`, the generator with its question encoder; where passages are trained also `encoder/`,
    both towers, and `index/`, the passages under it.

    Args:
        config: of the run.
        objective: what is minimised.
        reads: settings of the finished generator: how it reads several passages.
        role: "both" refreshes in line; "trainer" leaves that to `refresh_index` in another process.

    Returns:
        The folder of the finished reader, `config.out / "reader"`.

    Raises:
        MismatchedArtifactError: the index was built with another encoder than the one named.
    """
    with held_run(config) as (known, world, index):
        return _train(known, objective, reads, role, world, index)


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
    seq2seq, settings = _generator(config, {**reads, "prior_scale": retriever.scale}, world.device)
    full = {name: tensor.detach().clone() for name, tensor in seq2seq.model.named_parameters()}
    seq2seq.model.to(world.device).to(resolve_precision(config.optim.precision, world.device))
    module, master = paired(retriever, own, seq2seq.model, full, name="generator")

    # data
    train, held_out = questions_of(config)
    held = HeldIndex(index)
    task = JointTask(config, retriever, seq2seq, settings, index, held, objective, world)
    batches = JointBatches(config, *task.teachable(train))
    log.info("%d questions, %d held out, %d batches", len(batches.questions), len(held_out), len(batches))

    # fit
    hooks: FitHooks = FrozenIndex(index.version)
    if config.document_side == "reencode":
        hooks = index_exchange(config, held, index, retriever, master, world=world, role=role)
    result = fit(
        module, master, batches, lambda _, batch: task.loss(batch, batches.questions), config.optim,
        config.run, config.out, evaluate=(lambda _: task.measure(held_out)) if held_out else None,
        hooks=hooks, world=world,
    )  # fmt: skip

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
        manifest = GeneratorManifest(name=config.name, settings=settings)

        def add(folder: Path) -> None:
            asking = folder / QUESTION_ENCODER
            export_model(asking, retriever, weights, form, only="question")
            manifest.model_copy(update={"retriever": binding(folder, identity)}).save(folder)

        told = {**full, **part(result.weights, "generator")}
        shown = {**final_figures(config, result.chosen_step), "steps": result.chosen_step}
        save_reader(config.out / "reader", seq2seq, told, manifest, shown, add=add)
    world.barrier()
    return config.out / "reader"


def _generator(
    config: JointTrainConfig, reads: Mapping[str, Any], device: str
) -> tuple[Seq2Seq, GeneratorSettings]:
    given = config.reader.model_dump(exclude={"generator", "dropout"}, exclude_none=True)
    folder = Path(config.reader.generator)
    settings = GeneratorSettings()
    if (folder / READER_FILE).exists():
        settings = load_manifest(GeneratorManifest, folder).settings
    model, tokenizer, _ = load_seq2seq(
        config.reader.generator, dropout=config.reader.dropout, train_on=device
    )
    wanted = {**given, **reads, "no_answer": None, "max_passages": config.top_k}
    settings = with_overrides(settings, wanted)
    check_rows(model, settings)
    return Seq2Seq(model, tokenizer), settings
