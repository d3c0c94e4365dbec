r"""Train a retriever by predicting masked words from the passages that it retrieves (REALM).

    p(y|x) = Σ_z p(z|x) Π_t p(y_t|x, z)

x is a sentence with masks, z a passage or the null document, which is empty and gets the
probability where no passage helps; p(z|x) is the softmax of S(x, z) over the retrieved passages.
They are retrieved from an index that is refreshed from time to time, and scored by the current
model, so that both towers are trained:

    ∇ log p(y|x) = Σ_z r(z) ∇S(x, z),   r(z) = (p(y|z, x) / p(y|x) − 1) p(z|x)

Source:
    Guu et al. 2020, "REALM: Retrieval-Augmented Language Model Pre-Training", sections 3 and 4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from indexers.embeddings import EmbeddingShards
from indexers.index import Index
from indexers.protocols import EncodesCorpus
from rag.core.arrays import Int64
from rag.core.types import Passage, Query
from rag.data.salient import title_hashes
from rag.joint.config import RealmTrainConfig
from rag.joint.finding import LiveIndex, index_refresh
from rag.joint.masked import Filler, MaskedSentence, SentenceBatches
from rag.joint.span_filler import open_filler
from rag.training.distributed import World
from rag.training.fit import FitHooks, Loss, Method, Weights
from rag.training.precision import MasterWeights, part
from rag.training.run import train
from readers.generative.marginal import answer_log_likelihood
from retrievers.encoders.tokenization import mask_token
from retrievers.examples.batches import Epochs
from retrievers.examples.corpus import open_corpus
from retrievers.training.bi_encoder import (
    BiEncoderModel,
    adopt_index,
    encoder_form,
    export_model,
    listed_scores,
    load_model,
)
from retrievers.training.recipe import encoder_card, export_frozen, frozen_form

_Text = tuple[str, str]  # title and text of a passage
_FIGURES = ("utility", "null", "found", "p_gold", "posterior_gold")
_SPARE = 8  # further passages to retrieve, in place of those that are excluded
_DRAWN = (
    4  # sentences drawn for each that is trained on, where only sentences that can be filled in are
)


def train_realm(config: RealmTrainConfig, *, encode: EncodesCorpus | None = None) -> Path:
    """Train as `config` says, or resume the run in `config.out`; see `rag.training.run.train`.

    Writes the files of a bi-encoder's run into `config.out`, and `mlm/`, the masked language model; over a
    fixed index also `index/`, that index for the trained encoder.

    Args:
        encode: encodes the corpus at a refresh.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`.

    Raises:
        DataError: no sentence of the corpus has anything to mask.
        MismatchedArtifactError: the index was built with another encoder.
    """
    with Index.open(config.index) as index:
        adopted = adopt_index(config, index, same_encoder=True)
        return train(adopted, partial(build, adopted, index, encode), "encoder")


def build(
    config: RealmTrainConfig, index: Index, encode: EncodesCorpus | None, world: World
) -> Method:
    """The method of `train_realm`."""
    # model
    frozen = config.document_side == "frozen"
    retriever = load_model(config, world.device, freeze_passages=frozen)
    reader = open_filler(config, world.device).requires_grad_(config.train_reader)
    module = nn.ModuleDict({"retriever": retriever, "reader": reader})
    master = MasterWeights(module, config.precision)

    # data
    store = open_corpus(config.train_files or (config.index,), config.out / "data", config.split)
    titles = title_hashes(index.passages)
    drawn = config.batch_size * (_DRAWN if config.answered_within else 1)
    batches = SentenceBatches(
        store,
        reader.tokenizer,
        titles=titles,
        min_words=config.min_words,
        sentence_tokens=config.sentence_tokens,
        examples=Epochs.of(config, len(store), drawn),
        mask_token=mask_token(retriever.settings.question.weights_dir),
    )
    live_index = LiveIndex(index)
    vectors = index.embeddings if frozen else None
    task = RealmTask(config, retriever, reader, live_index, world, vectors)
    hooks = FitHooks()
    if not frozen:
        hooks = index_refresh(config, live_index, retriever, master, world=world, encode=encode)
    form = frozen_form(retriever) if frozen else encoder_form(retriever)

    def export(weights: Weights) -> None:
        reader.save(config.out / "mlm", part(weights, "reader"))
        own = part(weights, "retriever")
        if frozen:
            export_frozen(index, retriever, own)
        else:
            export_model(config.out / "encoder", retriever, own, form)

    return Method(
        model=module,
        master=master,
        batches=batches,
        loss=task.loss,
        export=export,
        card=encoder_card(retriever.config, form),
        hooks=hooks,
        facts={
            "passages with sentences": len(store),
            "with something to mask, in percent": round(100 * batches.usable, 1),
            "passages of the index": len(index.passages),
        },
        shares=True,
    )


@dataclass(slots=True)
class RealmTask:
    """The loss of masked words, given passages retrieved from the live index.

    Attributes:
        vectors: the index's vectors of the passages, to score them by; None encodes them with the
            model as it is.
    """

    config: RealmTrainConfig
    retriever: BiEncoderModel
    reader: Filler
    live_index: LiveIndex
    world: World
    vectors: EmbeddingShards | None = None

    def loss(self, batch: Sequence[MaskedSentence]) -> Loss:
        """Loss and figures of this process's share of the batch."""
        sentences, total = batch[self.world.rank :: self.world.size], len(batch)
        parts = dict.fromkeys(_FIGURES, 0.0)
        if self.config.answered_within:
            answered = self._answered(sentences)
            parts["answered"] = len(answered) / total
            total = min(total, self.config.batch_size)
            sentences = answered[: len(range(self.world.rank, total, self.world.size))]
        if not sentences:  # fewer sentences than processes, or none that a passage fills in
            nothing = next(self.retriever.parameters()).sum() * 0.0
            return Loss(nothing, examples=0, tokens=0, parts=parts)
        scores, rows, passages = self.retrieve(sentences)
        texts = self.reader.tokens([text for _, text in passages])
        listed = [[texts[place] for place in places] for places in rows.tolist()]
        logp = self.reader(sentences, listed)  # (B, K, T)
        lengths = torch.tensor([len(sentence.places) for sentence in sentences], device=logp.device)
        value = answer_log_likelihood("sequence", scores, logp)  # (B,) log p(y|x)
        holds = _holding_words(sentences, rows, passages).to(scores.device)  # (B, K)
        with torch.no_grad():
            prior, posterior = scores.softmax(1), (scores + logp.sum(2)).softmax(1)
            figures: dict[str, Any] = {
                "utility": ((value - logp[:, 0].sum(1)) / lengths).sum(),
                "null": prior[:, 0].sum(),
                "found": holds.any(1).sum(),
                "p_gold": (prior * holds).sum(),
                "posterior_gold": (posterior * holds).sum(),
            }
        return Loss(
            -value.sum() / total,
            examples=len(sentences),
            tokens=sum(len(sentence.ids) for sentence in sentences) + sum(map(len, texts)),
            parts=parts | {name: float(value) / total for name, value in figures.items()},
        )

    @torch.no_grad()
    def _answered(self, sentences: Sequence[MaskedSentence]) -> list[MaskedSentence]:
        """The sentences that one of their first `answered_within` passages can fill in."""
        if not sentences:
            return []
        questions = self.retriever.ask([Query(sentence.query) for sentence in sentences])
        rows = self.live_index.search(questions, self.config.answered_within)
        return [
            sentence
            for sentence, passages in zip(sentences, self.live_index.passages_of(rows), strict=True)
            if any(sentence.words in p.text and not sentence.stands_in(p) for p in passages)
        ]

    def retrieve(self, sentences: Sequence[MaskedSentence]) -> tuple[Tensor, Int64, list[_Text]]:
        """Retrieve the passages of each sentence and score them with the current model.

        Passages that contain the sentence, and duplicates, are left out. Where no passage is left,
        the null document is used, even if the configuration excludes it.

        Returns:
            Scores (B, K), the null document first, −inf in empty places; indices (B, K) into the
            third item; the titles and texts of the distinct passages, the null document first.
        """
        n_passages = self.config.documents - 1
        questions = self.retriever.ask([Query(sentence.query) for sentence in sentences])  # (B, D)
        retrieved = self.live_index.search(questions, n_passages + _SPARE)
        stored: dict[_Text, int] = {}  # a row of the index with this title and text
        places: dict[_Text, int] = {("", ""): 0}
        rows = np.zeros((len(sentences), n_passages + 1), np.int64)
        empty = np.zeros(rows.shape, bool)
        candidates = self.live_index.passages_of(retrieved)
        for number, (sentence, own) in enumerate(zip(sentences, candidates, strict=True)):
            listed: dict[_Text, None] = {}
            for row, passage in zip(
                retrieved[number].tolist(), own, strict=False
            ):  # rows may end with −1
                if len(listed) < n_passages and not sentence.stands_in(passage):
                    listed[passage.title, passage.text] = None
                    stored[passage.title, passage.text] = row
            for slot, key in enumerate(listed, 1):
                rows[number, slot] = places.setdefault(key, len(places))
            empty[number, 1 + len(listed) :] = True
            empty[number, 0] = not self.config.null_document and bool(listed)
        vectors = self._vectors(list(places), stored)
        chosen = torch.from_numpy(np.where(empty, -1, rows))
        return listed_scores(questions, vectors, chosen, self.retriever.scale), rows, list(places)

    def _vectors(self, passages: Sequence[_Text], stored: Mapping[_Text, int]) -> Tensor:
        """(U, D) vectors of passages, the null document first: encoded now, or those of the index
        by row.
        """
        encoded = passages if self.vectors is None else passages[:1]
        vectors = self.retriever.read([Passage("", title, text) for title, text in encoded])
        if self.vectors is None:
            return vectors
        fixed = self.vectors.rows(np.array([stored[key] for key in passages[1:]], np.int64))
        return torch.cat([vectors.float(), torch.from_numpy(fixed).to(vectors.device)])


def _holding_words(
    sentences: Sequence[MaskedSentence], rows: Int64, passages: Sequence[_Text]
) -> Tensor:
    """(B, K) bool: which passages hold the masked words; the null document, of place 0, never
    does.
    """
    holding = [
        [place > 0 and sentence.words in passages[place][1] for place in places]
        for sentence, places in zip(sentences, rows.tolist(), strict=True)
    ]
    return torch.tensor(holding)
