"""Retriever and generator as one model, trained from questions and answers alone: what RAG and EMDR² share.

questions → vectors → top k of the index held → their scores with gradient → generator → loss → fit → export
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from indexers.build import BuildSettings, build_index
from indexers.index import Index
from rag.core.files import atomic_write_json
from rag.core.log import get_logger
from rag.joint.held import HeldIndex, IndexRefresher, index_exchange
from rag.joint.questions import questions_of
from rag.joint.task import JointBatches, JointTask, Objective
from rag.joint.together_config import JointTrainConfig
from rag.runtime.hardware import resolve_precision, use_threads
from rag.training.distributed import World
from rag.training.fit import FitHooks, fit
from rag.training.precision import MasterWeights
from readers.generative.files import check_rows, load_seq2seq
from readers.generative.model import Seq2Seq
from readers.generative.settings import GeneratorManifest, GeneratorSettings
from readers.generative.training.finish import save_reader
from readers.manifest import READER_FILE, load_manifest, with_overrides
from retrievers.bound import QUESTION_ENCODER, binding
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.frozen import FrozenIndex, like_index
from retrievers.training.model import BiEncoderModel
from retrievers.training.recipe import claimed
from retrievers.training.run import encoder_form, export_model, load_model

__all__ = ["JointModel", "Role", "refresh_together", "train_together"]

Role = Literal["both", "trainer"]
_FINISHED = "finished.json"

log = get_logger(__name__)


class JointModel(nn.Module):
    """Both networks; parameters are named `retriever.question.…`, `retriever.passage.…`, `generator.…`."""

    def __init__(self, retriever: BiEncoderModel, generator: nn.Module) -> None:
        super().__init__()
        self.retriever, self.generator = retriever, generator


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
        role: "both" refreshes in line; "trainer" leaves that to `refresh_together` in another process.

    Returns:
        The folder of the finished reader, `config.out / "reader"`.

    Raises:
        MismatchedArtifactError: the index was built with another encoder than the one named.
    """
    with claimed(config) as world, Index.open(config.index) as index:
        if (identity := index.encoder_identity) is not None and config.model.question_encoder is not None:
            index.check_encoder(BiEncoder.load_like(identity, config.model.question_encoder).identity)
        known = like_index(config, index, World.single(world.device))
        if world.is_main:
            (config.out / _FINISHED).unlink(missing_ok=True)
        finished = _train(known, objective, reads, role, world, index)
        if world.is_main:
            atomic_write_json(config.out / _FINISHED, {"reader": finished.name})
        return finished


def refresh_together(config: JointTrainConfig) -> Path:
    """Make indexes of the snapshots of the trainer in `config.out` until it has finished."""
    use_threads(config.run.threads)
    with Index.open(config.index) as index:
        known = like_index(config, index, World.single())
        scale = BiEncoderModel.from_folder(**dict(known.model), seed=config.run.seed).temperature
        refresher = IndexRefresher(config, config.out, index, temperature=scale, seed=config.run.seed)
        refresher.watch((config.out / _FINISHED).exists)
    return config.out / "indexes"


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
    seq2seq, settings = _generator(config, {**reads, "prior_scale": retriever.scale})
    weights = {f"generator.{n}": p.detach().clone() for n, p in seq2seq.model.named_parameters()}
    seq2seq.model.to(world.device).to(resolve_precision(config.optim.precision, world.device))
    module = JointModel(retriever, seq2seq.model)
    master = MasterWeights(module, weights | {f"retriever.{n}": p for n, p in own.state().items()})

    # data
    train, held_out = questions_of(config)
    held = HeldIndex(index)
    task = JointTask(config, retriever, seq2seq, settings, index, held, objective, world)
    batches = JointBatches(config, *task.teachable(train))
    log.info("%d questions, %d held out, %d batches", len(batches.questions), len(held_out), len(batches))

    # fit
    form = replace(encoder_form(config, retriever), max_length=config.model.passage_tokens)

    def tower_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        part = "retriever."
        return {n.removeprefix(part): t for n, t in tensors.items() if n.startswith(part)}

    hooks: FitHooks = FrozenIndex(index.version)
    if config.document_side == "reencode":
        hooks = index_exchange(
            config, config.out, held, index,
            lambda folder: export_model(folder, retriever, tower_weights(master.state()), form),
            temperature=retriever.temperature, seed=config.run.seed, show_steps=config.run.log_every_steps,
            world=world, in_line=role == "both",
        )  # fmt: skip
    result = fit(
        module, master, batches, lambda _, batch: task.loss(batch, batches.questions), config.optim,
        config.run, config.out, evaluate=(lambda _: task.measure(held_out)) if held_out else None,
        hooks=hooks, world=world,
    )  # fmt: skip

    # export
    if world.is_main:
        master.load({name: tensor.to(world.device) for name, tensor in result.weights.items()})
        figures = task.measure(held_out) if held_out else {}
        identity = index.encoder_identity
        if not frozen:
            export_model(config.out / "encoder", retriever, tower_weights(result.weights), form)
            encoder = BiEncoder.load(config.out / "encoder", device=world.device)
            built = BuildSettings(index_type=config.index_type)
            build_index(iter(index.passages), config.out / "index", encoder=encoder, settings=built)
            identity = encoder.identity
        assert identity is not None
        manifest = GeneratorManifest(name=config.name, settings=settings)

        def add(folder: Path) -> None:
            asking = folder / QUESTION_ENCODER
            export_model(asking, retriever, tower_weights(result.weights), form, only="question")
            manifest.model_copy(update={"retriever": binding(folder, identity)}).save(folder)

        own_weights = {n.removeprefix("generator."): t for n, t in {**weights, **result.weights}.items()}
        named = {n: t for n, t in own_weights.items() if not n.startswith("retriever.")}
        shown = {**figures, "steps": result.chosen_step}
        save_reader(config.out / "reader", seq2seq, named, manifest, shown, add=add)
    world.barrier()
    return config.out / "reader"


def _generator(config: JointTrainConfig, reads: Mapping[str, Any]) -> tuple[Seq2Seq, GeneratorSettings]:
    given = config.reader.model_dump(exclude={"generator", "dropout"}, exclude_none=True)
    folder = Path(config.reader.generator)
    settings = GeneratorSettings()
    if (folder / READER_FILE).exists():
        settings = load_manifest(GeneratorManifest, folder).settings
    model, tokenizer, _ = load_seq2seq(config.reader.generator, dropout=config.reader.dropout)
    wanted = {**given, **reads, "no_answer": None, "max_passages": config.top_k}
    settings = with_overrides(settings, wanted)
    check_rows(model, settings)
    return Seq2Seq(model, tokenizer), settings
