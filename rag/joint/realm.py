r"""Train a retriever by predicting masked words from the passages that it retrieves (REALM).

    p(y|x) = Σ_z p(z|x) Π_t p(y_t|x, z)      "sequence", as in the paper
    p(y|x) = Π_t Σ_z p(z|x) p(y_t|x, z)      "token", as in the published code: mean over t of the log

x is a sentence with masks, z a passage or the null document, which is empty and gets the probability where
no passage helps; p(z|x) is the softmax of S(x, z) over the retrieved passages. They are retrieved from an
index that is refreshed from time to time, and scored by the current model, so that both towers are trained:

    ∇ log p(y|x) = Σ_z r(z) ∇S(x, z),   r(z) = (p(y|z, x) / p(y|x) − 1) p(z|x)      ("sequence")

Source:
    Guu et al. 2020, "REALM: Retrieval-Augmented Language Model Pre-Training", sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from indexers.index import Index
from indexers.protocols import IntArray
from rag.core.types import Passage, Query
from rag.joint.live_index import LiveIndex, index_exchange
from rag.joint.masked import MaskedReader, MaskedSentence, MlmConfig, SentenceBatches
from rag.joint.pair import part
from rag.joint.salient import Masks, open_tagger
from rag.training.distributed import World
from rag.training.fit import Loss
from rag.training.refresh.processes import Role
from rag.training.refresh.staleness import distinct_share, score_entropy
from rag.training.run import Method, Run, Trained, train
from readers.generative.marginal import Marginal, answer_log_likelihood
from retrievers.encoders.tokenization import mask_token
from retrievers.examples.batches import Epochs
from retrievers.examples.corpus import open_corpus
from retrievers.training.bi_encoder import (
    BiEncoderModel,
    adopt_index,
    encoder_form,
    export_model,
    load_model,
)
from retrievers.training.config import CorpusTrainConfig, ModelConfig
from retrievers.training.frozen import listed_scores
from retrievers.training.ict import CorpusDataConfig
from retrievers.training.recipe import encoder_card

_SPARE = 8  # further passages to retrieve, in place of those that are excluded


class RealmTrainConfig(CorpusTrainConfig):
    """Settings of `rag train realm`.

    Attributes:
        train_files: sources of the sentences: a built index, or files of documents; empty means `index`.
        masks: what is masked: "salient" (names and dates), "random" words or a random "span".
        tagger: token classification model that finds names; None finds them by capital letters and by the
            titles of the corpus.
        marginal: "sequence" or "token".
        documents: K, number of passages per sentence, including the null document.
        null_document: whether the null document is one of the passages; if not, its effect is still measured.
        mlm: settings of the masked language model.
    """

    recipe: ClassVar[str] = "realm"
    measured: ClassVar[tuple[str, ...]] = ()

    train_files: tuple[Path, ...] = ()
    masks: Masks = "salient"
    tagger: str | None = None
    marginal: Marginal = "sequence"
    documents: int = Field(default=8, ge=2)
    null_document: bool = True
    data: CorpusDataConfig = CorpusDataConfig(batch_size=16)
    model: ModelConfig = ModelConfig(question_tokens=96)
    mlm: MlmConfig = MlmConfig()

    @model_validator(mode="after")
    def _cross_check_realm(self) -> RealmTrainConfig:
        if self.tagger is not None and self.masks != "salient":
            raise ValueError(f"a tagger has no use with masks={self.masks}")
        if self.model.question_tokens < self.mlm.sentence_tokens:
            raise ValueError(
                f"the retriever reads question_tokens ({self.model.question_tokens}) of a sentence of up to "
                f"sentence_tokens ({self.mlm.sentence_tokens}): masks behind them would not be looked for"
            )
        return self


def realm_log_likelihood(marginal: Marginal, scores: Tensor, logp: Tensor, lengths: Tensor) -> Tensor:
    """(B,) log p(y|x), for "token" the mean over the masked tokens.

    Args:
        marginal: "sequence" or "token", see the equations of the module.
        scores: (B, K) S(x, z), −inf where there is no passage.
        logp: (B, K, T) log p(y_t|x, z), 0 after the last masked token.
        lengths: (B,) numbers of masked tokens.
    """
    value = answer_log_likelihood(marginal, scores, logp)
    return value / lengths if marginal == "token" else value


def train_realm(config: RealmTrainConfig, role: Role = "both") -> Path:
    """Train as `config` says, or resume the run in `config.out`.

    Writes the files of `train_dpr` into `config.out`, and `mlm/`, the masked language model, and `snapshots/`
    and `indexes/`, through which trainer and refresher exchange models and indexes.

    Args:
        role: "both" refreshes the index in this process; "trainer" leaves that to `refresh_index`.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`.

    Raises:
        DataError: no sentence of the corpus has anything to mask.
        ConfigError: the configuration cannot work.
        MismatchedArtifactError: `config.out` holds a run with another configuration, or the index was built
            with another encoder.
    """
    with Index.open(config.index) as index:
        adopted = adopt_index(config, index, same_encoder=True)
        return train(adopted, partial(_method, adopted, role, index), "encoder", role=role)


def _method(config: RealmTrainConfig, role: Role, index: Index, run: Run) -> Method:
    # model
    retriever, reader = load_model(config, run.device), MaskedReader.of(config.mlm, run.device)
    module = nn.ModuleDict({"retriever": retriever, "reader": reader})
    master = run.master(module)

    # data
    store, _ = open_corpus(config.train_files or (config.index,), run.out / "data", config.data.split)
    tagger = open_tagger(config.masks, config.tagger, index.passages, run.out / "data", run.device)
    batches = SentenceBatches(
        store, reader.tokenizer, masks=config.masks, tagger=tagger, min_words=config.data.min_words,
        sentence_tokens=config.mlm.sentence_tokens, examples=Epochs.of(config, len(store)),
        mask_token=mask_token(retriever.settings.question.weights_dir),
    )  # fmt: skip
    held = LiveIndex(index)
    task = RealmTask(config, retriever, reader, held, run.world)
    form = encoder_form(config, retriever)

    def export(trained: Trained) -> None:
        reader.save(run.out / "mlm", part(trained.weights, "reader"))
        export_model(run.out / "encoder", retriever, part(trained.weights, "retriever"), form)

    return Method(
        module, master, batches, task.loss, export, encoder_card(config, form),
        hooks=index_exchange(config, held, index, retriever, master, world=run.world, role=role),
        facts={
            "passages with sentences": len(store),
            "of them with something to mask, in percent": round(100 * batches.usable, 1),
            "passages of the index": len(index.passages),
            "index": f"made anew {config.refresh}",
        },
    )  # fmt: skip


class RealmTask:
    """The loss of masked words, given passages retrieved from the live index."""

    def __init__(
        self,
        config: RealmTrainConfig,
        retriever: BiEncoderModel,
        reader: MaskedReader,
        held: LiveIndex,
        world: World,
    ) -> None:
        self.config, self.retriever, self.reader = config, retriever, reader
        self.held, self.world = held, world

    def loss(self, batch: Sequence[MaskedSentence]) -> Loss:
        """Loss and figures of this process's share of the batch."""
        own = batch[self.world.rank :: self.world.size]
        if not own:  # fewer sentences than processes
            return Loss(next(self.retriever.parameters()).sum() * 0.0, examples=0, tokens=0, parts=_PARTS)
        scores, rows, passages = self.retrieve(own)
        texts = self.reader.tokens([text for _, text in passages])
        logp = self.reader(own, [[texts[place] for place in listed] for listed in rows.tolist()])  # (B, K, T)
        lengths = torch.tensor([len(sentence.places) for sentence in own], device=logp.device)
        value = realm_log_likelihood(self.config.marginal, scores, logp, lengths)
        holds = _holding(own, rows, passages).to(scores.device)
        with torch.no_grad():
            whole = value if self.config.marginal == "token" else value / lengths
            prior, posterior = scores.softmax(1), (scores + logp.sum(2)).softmax(1)
            figures = {
                "utility": (whole - logp[:, 0].sum(1) / lengths).sum(),
                "null": prior[:, 0].sum(),
                "found": holds.any(1).sum(),
                "p_gold": (prior * holds).sum(),
                "posterior_gold": (posterior * holds).sum(),
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
        """Retrieve the passages of each sentence and score them with the current model.

        Passages that contain the sentence, and duplicates, are left out. Where no passage is left, the null
        document is used, even if the configuration excludes it.

        Returns:
            Scores (B, K), the null document first, −inf in empty places; indices (B, K) into the third item;
            the titles and texts of the distinct passages, the null document first.
        """
        model, wanted = self.retriever, self.config.documents - 1
        questions = model.ask([Query(sentence.query) for sentence in sentences])  # (B, D)
        found = self.held.passages_of(self.held.search(questions, wanted + _SPARE))
        places: dict[tuple[str, str], int] = {("", ""): 0}
        rows = np.zeros((len(sentences), wanted + 1), np.int64)
        empty = np.zeros(rows.shape, bool)
        for number, (sentence, own) in enumerate(zip(sentences, found, strict=True)):
            listed: dict[tuple[str, str], None] = {}
            for passage in own:
                if len(listed) < wanted and not sentence.stands_in(passage):
                    listed[passage.title, passage.text] = None
            for slot, key in enumerate(listed, 1):
                rows[number, slot] = places.setdefault(key, len(places))
            empty[number, 1 + len(listed) :] = True
            empty[number, 0] = not self.config.null_document and bool(listed)
        passages = list(places)
        vectors = model.read([Passage("", title, text) for title, text in passages])  # (U, D)
        chosen = torch.from_numpy(np.where(empty, -1, rows))
        return listed_scores(questions, vectors, chosen, model.scale), rows, passages


def _holding(
    sentences: Sequence[MaskedSentence], rows: IntArray, passages: Sequence[tuple[str, str]]
) -> Tensor:
    """(B, K) whether a passage contains all masked words of the sentence; the null document never does."""
    return torch.tensor(
        [
            [place > 0 and all(word in passages[place][1] for word in sentence.words) for place in listed]
            for sentence, listed in zip(sentences, rows.tolist(), strict=True)
        ]
    )


_FIGURES = ("utility", "null", "found", "p_gold", "posterior_gold", "entropy", "distinct")
_PARTS = dict.fromkeys(_FIGURES, 0.0)
