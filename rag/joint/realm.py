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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from indexers.index import Index
from indexers.protocols import EncodesCorpus
from rag.core.types import Passage, Query
from rag.data.salient import title_hashes
from rag.joint.config import RealmTrainConfig
from rag.joint.fillers import Filler
from rag.joint.live_index import LiveIndex, index_refresh
from rag.joint.questions import gold_sums
from rag.joint.sentences import MaskedSentence, SentenceBatches
from rag.joint.span_filler import open_filler
from rag.training.distributed import World
from rag.training.fit import FitHooks, Loss, Method, Weights
from rag.training.precision import MasterWeights, part
from rag.training.run import train
from readers.generative.marginal import answer_log_likelihood
from retrievers.encoders.tokenization import mask_token
from retrievers.examples.batches import Epochs
from retrievers.examples.corpus import open_corpus
from retrievers.training.bi_encoder import BiEncoderModel, adopt_index, load_model, score_rows
from retrievers.training.recipe import encoder_card, export_retriever

_FIGURES = ("utility", "null", "found", "p_gold", "posterior_gold")
# Passages retrieved beyond those needed, in place of those that are left out.
_SPARE = 8
# Sentences drawn for one that is trained on, where those that no passage can fill in are left out.
_DRAWS_PER_SENTENCE = 4


def train_realm(config: RealmTrainConfig, *, encode: EncodesCorpus | None = None) -> Path:
    """Train as `config` says, or resume the run in `config.out`; see `rag.training.run.train`.

    Writes the files of a bi-encoder's run into `config.out`, and `mlm/`, the masked language model;
    over a fixed index also `index/`, that index for the trained encoder.

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
        return train(adopted, partial(build, adopted, index=index, encode=encode), "encoder")


def build(
    config: RealmTrainConfig, world: World, *, index: Index, encode: EncodesCorpus | None
) -> Method:
    """The method of `train_realm`."""
    # model
    passage_index = None if config.frozen is None else index
    trained = load_model(config, world.device, passage_index=passage_index)
    retriever = trained.model
    reader = open_filler(config, world.device).requires_grad_(config.train_reader)
    module = nn.ModuleDict({"retriever": retriever, "reader": reader})
    master = MasterWeights(module, config.precision)

    # data
    store = open_corpus(config.train_files or (config.index,), config.out / "data", config.split)
    drawn = config.batch_size * (_DRAWS_PER_SENTENCE if config.answered_within else 1)
    batches = SentenceBatches(
        store,
        reader.tokenizer,
        title_hashes(index.passages),
        Epochs.of(config, len(store), drawn),
        min_words=config.min_words,
        sentence_tokens=config.sentence_tokens,
        mask_token=mask_token(retriever.settings.question.weights_dir),
    )
    live_index = LiveIndex(index)
    task = RealmTask(config, retriever, reader, live_index, world)
    hooks = FitHooks()
    if passage_index is None:
        hooks = index_refresh(config, live_index, retriever, master, world=world, encode=encode)

    def export(weights: Weights) -> None:
        reader.save(config.out / "mlm", part(weights, "reader"))
        export_retriever(trained, part(weights, "retriever"))

    return Method(
        model=module,
        master=master,
        batches=batches,
        loss=task.loss,
        export=export,
        card=encoder_card(trained),
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
    """The loss of masked words, given passages retrieved from the live index."""

    config: RealmTrainConfig
    retriever: BiEncoderModel
    reader: Filler
    live_index: LiveIndex
    world: World

    def loss(self, batch: Sequence[MaskedSentence]) -> Loss:
        """Loss and figures of this process's share of the batch: the sums over its sentences, divided
        by the number of sentences that all processes train on.
        """
        world = self.world
        sentences = batch[world.rank :: world.size]
        total: float = len(batch)
        parts = dict[str, float | Tensor]()
        if self.config.answered_within:
            answered = self._answered(sentences)
            parts["answered"] = len(answered) / total
            sentences = answered[: len(range(world.rank, self.config.batch_size, world.size))]
            total = world.total(len(sentences))
        if not sentences:
            # With fewer sentences than processes, or none that a passage fills in: a loss that is
            # zero, with gradients to be summed like those of the others. Where no process has a
            # sentence, there is nothing to log.
            parts |= dict.fromkeys(_FIGURES if total else (), 0.0)
            trained = (tensor for tensor in self.retriever.parameters() if tensor.requires_grad)
            zero = next(trained).sum() * 0.0
            return Loss(zero, 0, 0, parts=parts)
        scores, texts = self.retrieve(sentences)
        passages = list(map(self.reader.tokens, texts))
        logp = self.reader(sentences, passages)  # (B, K, T)
        value = answer_log_likelihood("sequence", scores, logp)  # (B,) log p(y|x)
        with torch.no_grad():
            for name, sums in _figures(sentences, texts, scores, logp, value).items():
                parts[name] = sums / total
        n_tokens = sum(len(sentence.ids) for sentence in sentences)
        n_tokens += sum(map(len, chain.from_iterable(passages)))
        return Loss(-value.sum() / total, len(sentences), n_tokens, parts=parts)

    @torch.no_grad()
    def _answered(self, sentences: Sequence[MaskedSentence]) -> list[MaskedSentence]:
        """The sentences that one of their first `answered_within` passages can fill in."""
        if not sentences:
            return []
        rows = self.live_index.search(self._queries(sentences), self.config.answered_within)
        passages = self.live_index.passages_of(rows)
        answered = []
        for sentence, found in zip(sentences, passages, strict=True):
            if any(map(sentence.could_be_filled_from, found)):
                answered.append(sentence)
        return answered

    def _queries(self, sentences: Sequence[MaskedSentence]) -> Tensor:
        """(B, D) vectors of the sentences with their masks."""
        return self.retriever.encode_queries([Query(sentence.query) for sentence in sentences])

    def retrieve(self, sentences: Sequence[MaskedSentence]) -> tuple[Tensor, list[list[str]]]:
        """Retrieve the passages of each sentence and score them with the current model.

        Passages that contain the sentence, and duplicates, are left out. Where no passage is left,
        the null document is used, even if the configuration excludes it.

        Returns:
            Scores (B, K), the null document first, −inf in empty places; and the K texts of each
            sentence, "" for the null document and in empty places.
        """
        # One of the K documents is the null document.
        n_passages = self.config.documents - 1
        queries = self._queries(sentences)
        found = self.live_index.search(queries, n_passages + _SPARE)
        candidates = self.live_index.passages_of(found)
        rows = np.full((len(sentences), n_passages), -1)
        texts = []
        for b, sentence in enumerate(sentences):
            passages: dict[tuple[str, str], int] = {}
            # The rows may end with −1, which stands for no passage.
            for row, passage in zip(found[b].tolist(), candidates[b], strict=False):
                if len(passages) < n_passages and not sentence.stands_in(passage):
                    passages.setdefault(passage.content, row)
            rows[b, : len(passages)] = list(passages.values())
            contents = [text for _, text in passages]
            texts.append(["", *contents] + [""] * (n_passages - len(contents)))
        null_document = self.retriever.encode_passages([Passage("", "", "")])  # (1, D)
        null_scores = queries @ null_document.T * self.retriever.scale  # (B, 1)
        if not self.config.null_document:
            has_passages = torch.from_numpy(rows[:, :1] >= 0).to(null_scores.device)
            null_scores = null_scores.masked_fill(has_passages, float("-inf"))
        encode = self.config.frozen is None
        scores = score_rows(self.retriever, self.live_index.index, queries, rows, encode=encode)
        return torch.cat([null_scores, scores], 1), texts


def _figures(
    sentences: Sequence[MaskedSentence],
    texts: Sequence[Sequence[str]],
    scores: Tensor,
    logp: Tensor,
    value: Tensor,
) -> dict[str, Tensor]:
    """Sums over the sentences of what the log shows.

    Args:
        texts: K passages of each sentence, the null document first.
        scores: (B, K) of these.
        logp: (B, K, T) log-likelihood of the masked tokens.
        value: (B,) log p(y|x).
    """
    prior = scores.softmax(1)
    posterior = (scores + logp.sum(2)).softmax(1)
    # The null document, which is the first, never holds the words.
    has_words = torch.zeros(scores.shape, dtype=torch.bool)
    for row, sentence, passages in zip(has_words, sentences, texts, strict=True):
        row[1:] = torch.tensor([sentence.words in text for text in passages[1:]])
    n_masks = torch.tensor([len(sentence.places) for sentence in sentences], device=logp.device)
    return {
        "utility": ((value - logp[:, 0].sum(1)) / n_masks).sum(),
        "null": prior[:, 0].sum(),
        **gold_sums(prior, posterior, has_words.to(scores.device)),
    }
