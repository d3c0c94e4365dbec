r"""Train a retriever by filling in masked words with what it finds (REALM).

    p(y|x) = Σ_z p(z|x) Π_t p(y_t|x, z)      "sequence", as in the paper
    p(y|x) = Π_t Σ_z p(z|x) p(y_t|x, z)      "token", as in its code, which takes the mean over t of the log

x is a sentence with masks, z a passage or the null document, which is empty and takes the credit where
nothing has to be looked up; p(z|x) is the softmax of S(x, z) over the passages that were found. Which are
found says an index that ages until it is made anew; what they score says the model as it is, so that both
towers learn:

    ∇ log p(y|x) = Σ_z r(z) ∇S(x, z),   r(z) = (p(y|z, x) / p(y|x) − 1) p(z|x)      ("sequence")

Source:
    Guu et al. 2020, "REALM: Retrieval-Augmented Language Model Pre-Training", sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from indexers.index import Index
from indexers.protocols import FloatArray, IntArray
from rag.config import Config
from rag.core.files import atomic_write_json
from rag.core.log import get_logger
from rag.joint.held import HeldIndex, IndexRefresher, index_exchange
from rag.joint.losses import listed_scores
from rag.joint.masked import MaskedReader, MaskedSentence, SentenceBatches
from rag.joint.salient import CapitalTagger, Masks, ModelTagger, Tagger, title_hashes
from rag.runtime.hardware import resolve_precision, use_threads
from rag.runtime.model_files import embedded_encoder_dir
from rag.training.config import RefreshedConfig
from rag.training.distributed import World
from rag.training.exchange import Exchange
from rag.training.fit import Loss, fit
from rag.training.precision import MasterWeights
from rag.training.refresh import distinct_share, score_entropy
from readers.generative.marginal import Marginal, answer_log_likelihood
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.layout import Query
from retrievers.examples.corpus import open_corpus
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.training.config import RetrieverTrainConfig
from retrievers.training.frozen import settings_of
from retrievers.training.ict import CorpusDataConfig
from retrievers.training.model import BiEncoderModel
from retrievers.training.recipe import claimed
from retrievers.training.run import encoder_form, export_model, finish_run, load_model
from retrievers.training.staleness import DriftMeter, ProbeSet

__all__ = ["RealmTrainConfig", "realm_log_likelihood", "run_refresher", "train_realm"]

log = get_logger(__name__)

_FINISHED = "finished.json"
_SPARE = 8  # passages found beyond those wanted, for those that are excluded


class MlmConfig(Config):
    """The masked language model.

    Attributes:
        encoder: Hugging Face name or folder; None is the embedded `all-MiniLM-L6-v2`, with a fresh head.
        sentence_tokens: sentences are cut here.
        joint_tokens: longest row of sentence and passage.
        mlm_dropout: of hidden states and attention weights; None is what the folder says.
    """

    encoder: str | None = None
    sentence_tokens: int = Field(default=96, ge=8)
    joint_tokens: int = Field(default=288, ge=32, le=512)
    mlm_dropout: float | None = Field(default=None, ge=0, lt=1)


class RealmTrainConfig(RefreshedConfig, RetrieverTrainConfig):
    """Everything `train_realm` reads.

    Attributes:
        train_files: where sentences are from: a built index, or files of documents; none: `index`.
        index: built index with vectors; its encoder is what training starts from.
        masks: what is masked: "salient" (names and dates), "random" words or a random "span".
        tagger: token classification model that finds names; None: by looks and by the corpus's titles.
        marginal: "sequence" or "token".
        documents: K, passages a sentence is read with, the null document among them.
        null_document: whether it competes; without it, it is still measured.
        mlm: see there.

    Example:
        >>> config = RealmTrainConfig(out="run", index="index", refresh="every 200")
        >>> config.masks, config.marginal, config.documents
        ('salient', 'sequence', 8)
    """

    recipe: ClassVar[str] = "realm"
    measured: ClassVar[tuple[str, ...]] = ()

    train_files: tuple[Path, ...] = ()
    index: Path
    masks: Masks = "salient"
    tagger: str | None = None
    marginal: Marginal = "sequence"
    documents: int = Field(default=8, ge=2)
    null_document: bool = True
    data: CorpusDataConfig = CorpusDataConfig(batch_size=16)
    mlm: MlmConfig = MlmConfig()

    @model_validator(mode="after")
    def _cross_check_realm(self) -> RealmTrainConfig:
        if self.validation_file is not None:
            raise ValueError("nothing is measured on questions here: index with the encoder, `rag evaluate`")
        if self.tagger is not None and self.masks != "salient":
            raise ValueError(f"a tagger has no use with masks={self.masks}")
        return self


class RealmModel(nn.Module):
    """Both networks; parameters are named `retriever.…` and `reader.…`."""

    def __init__(self, retriever: BiEncoderModel, reader: MaskedReader) -> None:
        super().__init__()
        self.retriever, self.reader = retriever, reader


def realm_log_likelihood(marginal: Marginal, scores: Tensor, logp: Tensor, lengths: Tensor) -> Tensor:
    """(B,) log p(y|x), for "token" the mean over the masked tokens.

    Args:
        marginal: see the module.
        scores: (B, K) S(x, z), −inf where there is no passage.
        logp: (B, K, T) log p(y_t|x, z), 0 behind the last token.
        lengths: (B,) masked tokens.
    """
    value = answer_log_likelihood(marginal, scores, logp)
    return value / lengths if marginal == "token" else value


def train_realm(config: RealmTrainConfig, role: Literal["both", "trainer"] = "both") -> Path:
    """Train as `config` says, or resume the run that `config.out` holds.

    Writes into `config.out` what `train_dpr` writes, `mlm/`, the masked language model, and `snapshots/` and
    `indexes/`, over which a trainer and a refresher meet.

    Args:
        role: "both" makes the index anew in this process; "trainer" leaves it to `run_refresher`.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`.

    Raises:
        DataError: the corpus has nothing to mask.
        ConfigError: the configuration cannot work.
        MismatchedArtifactError: `config.out` holds a run with another configuration, or the index was built
            with another encoder.
    """
    with claimed(config) as world, Index.open(config.index) as index:
        if world.is_main:
            (config.out / _FINISHED).unlink(missing_ok=True)
        finished = _train(settings_of(config, index, started=True), role, world, index)
        if world.is_main:
            atomic_write_json(config.out / _FINISHED, {"encoder": finished.name})
        world.barrier()
        return finished


def run_refresher(config: RealmTrainConfig) -> Path:
    """Make the index anew with every newer snapshot of the trainer in `config.out`, until it has finished.

    Returns:
        The folder of the published indexes.

    Raises:
        ResourceError: another refresher works there.
    """
    use_threads(config.run.threads)
    with Index.open(config.index) as index:
        known = settings_of(config, index, started=True)
        temperature = load_model(known, "cpu")[0].temperature
        refresher = IndexRefresher(
            config, config.out, index, temperature=temperature, seed=config.run.seed,
            load=partial(BiEncoder.load, precision=config.optim.precision),
        )  # fmt: skip
        refreshes = refresher.watch((config.out / _FINISHED).exists)
    log.info("the trainer has finished; made the index anew %d times", refreshes)
    return config.out / "indexes"


def _train(config: RealmTrainConfig, role: str, world: World, index: Index) -> Path:
    # model
    retriever, own = load_model(config, world.device)
    said = config.mlm
    reader = MaskedReader.load(
        said.encoder or embedded_encoder_dir(), max_tokens=said.joint_tokens, dropout=said.mlm_dropout,
        device=world.device,
    )  # fmt: skip
    full = {f"reader.{name}": tensor.detach().clone() for name, tensor in reader.named_parameters()}
    reader.to(resolve_precision(config.optim.precision, world.device))
    module = RealmModel(retriever, reader)
    numbers = {f"retriever.{name}": tensor for name, tensor in own.state().items()}
    master = MasterWeights(module, {**numbers, **full})

    # data
    if not world.is_main:
        world.barrier()  # the main process cuts the corpus and collects its titles
    store, _ = open_corpus(config.train_files or (config.index,), config.out / "data", config.data.split)
    tagger = _tagger(config, index, world)
    batches = SentenceBatches(
        store, reader.tokenizer, masks=config.masks, tagger=tagger, sentence_tokens=said.sentence_tokens,
        min_words=config.data.min_words, batch_size=config.data.batch_size, epochs=config.optim.epochs,
        max_batches=config.optim.max_batches, seed=config.run.seed,
    )  # fmt: skip
    if world.is_main:
        world.barrier()
    log.info(
        "%d passages with sentences, %d to find, %d batches", len(store), len(index.passages), len(batches)
    )

    # fit
    held = HeldIndex(index)
    task = RealmTask(config, module, held, world)
    result = fit(
        module, master, batches, lambda _, batch: task.loss(batch), config.optim, config.run, config.out,
        hooks=_exchange(config, role, task, index), world=world,
    )  # fmt: skip

    # export
    if world.is_main:
        weights = {name.partition(".")[2]: t for name, t in result.weights.items() if name.startswith("retr")}
        described = {
            "passages with sentences": len(store),
            "of them with something to mask, in percent": round(100 * batches.usable, 1),
            "passages that are found": len(index.passages),
            "index": f"made anew {config.refresh}",
        }
        trained = {n.partition(".")[2]: t for n, t in result.weights.items() if n.startswith("reader.")}
        reader.float().load_state_dict(trained, strict=False)  # tied weights stand there once
        reader.model.save_pretrained(config.out / "mlm")
        reader.tokenizer.save_pretrained(config.out / "mlm")
        form = encoder_form(config, retriever)
        finish_run(config, retriever, replace(result, weights=weights), form, described)
    return config.out / "encoder"


class RealmTask:
    """What a step minimises: masked words, with the passages that the held index finds.

    Args:
        config: of the run.
        module: both networks.
        held: the index.
        world: the processes; each takes its share of a batch.
    """

    def __init__(self, config: RealmTrainConfig, module: RealmModel, held: HeldIndex, world: World) -> None:
        self.config, self.module, self.held, self.world = config, module, held, world
        sides = module.retriever.settings
        self.texts = RetrieverTokenizer(sides.question, sides.passage)

    def loss(self, batch: Sequence[MaskedSentence]) -> Loss:
        """Forward pass of this process's share."""
        own = batch[self.world.rank :: self.world.size]
        if not own:  # fewer sentences than processes
            return Loss(next(self.module.parameters()).sum() * 0.0, examples=0, tokens=0, parts=_PARTS)
        scores, rows, passages = self.retrieve(own)
        reader = self.module.reader
        texts = reader.tokenizer([text for _, text in passages], add_special_tokens=False)["input_ids"]
        logp = reader(own, [[texts[place] for place in listed] for listed in rows.tolist()])  # (B, K, T)
        lengths = torch.tensor([len(sentence.places) for sentence in own], device=logp.device)
        value = realm_log_likelihood(self.config.marginal, scores, logp, lengths)
        with torch.no_grad():
            whole = value if self.config.marginal == "token" else value / lengths
            prior = scores.softmax(1)
            figures = {
                "utility": (whole - logp[:, 0].sum(1) / lengths).sum(),
                "null": prior[:, 0].sum(),
                "entropy": score_entropy(scores.float().cpu().numpy()) * len(own),
                "distinct": distinct_share(rows[:, 1:], len(passages)) * len(own),
            }
        return Loss(
            -value.sum() / len(batch),
            examples=len(own),
            tokens=sum(len(sentence.ids) + sum(map(len, texts)) // len(own) for sentence in own),
            parts={name: share / len(batch) for name, share in figures.items()},
        )

    def retrieve(self, sentences: Sequence[MaskedSentence]) -> tuple[Tensor, IntArray, list[tuple[str, str]]]:
        """What each sentence is read with.

        A passage that holds the sentence itself, and a copy of one that is there, are left out.

        Returns:
            Scores (B, K) by the model as it is, the null document first, −inf in empty places; places (B, K)
            in the third, the titles and texts of the passages, of which the null document is the first.
        """
        model, wanted = self.module.retriever, self.config.documents - 1
        asked = self.texts.queries([Query(sentence.query) for sentence in sentences])
        questions = model.encode_questions(_arrays(asked))  # (B, D)
        found = self.held.search(questions, wanted + _SPARE)
        places: dict[tuple[str, str], int] = {("", ""): 0}
        rows = np.zeros((len(sentences), wanted + 1), np.int64)
        empty = np.zeros(rows.shape, bool)
        for number, (sentence, own) in enumerate(zip(sentences, found, strict=True)):
            listed: dict[tuple[str, str], None] = {}
            for passage in self.held.passages.get_many(own[own >= 0]):
                if sentence.text not in passage.text and len(listed) < wanted:
                    listed[passage.title, passage.text] = None
            for slot, key in enumerate(listed, 1):
                rows[number, slot] = places.setdefault(key, len(places))
            empty[number, 1 + len(listed) :] = True
        empty[:, 0] = not self.config.null_document
        passages = list(places)
        ids = self.texts.passages([title for title, _ in passages], [text for _, text in passages])
        vectors = model.encode_passages(_arrays(ids))  # (U, D)
        chosen = torch.from_numpy(np.where(empty, -1, rows)).to(vectors.device)
        return listed_scores(questions, vectors, chosen, model.scale), rows, passages


_PARTS = dict.fromkeys(("utility", "null", "entropy", "distinct"), 0.0)


def _tagger(config: RealmTrainConfig, index: Index, world: World) -> Tagger | None:
    if config.masks != "salient":
        return None
    if config.tagger is not None:
        return ModelTagger(config.tagger, world.device)
    return CapitalTagger(title_hashes(index.passages, config.out / "data" / "titles.npy"))


def _exchange(config: RealmTrainConfig, role: str, task: RealmTask, index: Index) -> Exchange:
    model = task.module.retriever
    form = replace(encoder_form(config, model), max_length=config.query_tokens)
    drift = None
    if config.schedule_of_refresh.watches_drift:
        probes = ProbeSet.draw(
            1, len(index.passages), questions=1, passages=config.probe_passages, seed=config.run.seed
        )
        watched = index.passages.get_many(probes.passages)
        ids = _arrays(task.texts.passages([p.title for p in watched], [p.text for p in watched]))
        drift = DriftMeter(partial(_encode, model, ids))
    return index_exchange(
        config, config.out, task.held, index, lambda folder: export_model(folder, model, {}, form),
        temperature=model.temperature, precision=config.optim.precision, seed=config.run.seed,
        show_steps=config.run.log_every_steps, world=task.world, in_line=role == "both", drift=drift,
    )  # fmt: skip


@torch.no_grad()
def _encode(model: BiEncoderModel, ids: list[Any]) -> FloatArray:
    model.eval()
    vectors: FloatArray = model.encode_passages(ids).float().cpu().numpy()
    model.train()
    return vectors


def _arrays(sequences: Sequence[Sequence[int]]) -> list[Any]:
    return [np.array(sequence, np.int32) for sequence in sequences]
