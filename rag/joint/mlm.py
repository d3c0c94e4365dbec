"""Train an encoder to fill in masked words with the help of a passage, for `rag train realm`.

A sentence is read three times: beside the rest of its passage; alone, as beside REALM's null
document; and beside the passage that follows in the corpus, which helps as little as most retrieved
passages. `utility`, the gain from the rest in nats per word, is what REALM's retriever learns from:
near 0 it learns noise. `utility_after`, the gain from the next passage, should be near 0: if
useless passages do harm, the retriever learns to prefer the null document.

Source:
    Devlin et al. 2019, "BERT", section 3.1, with the spans of Guu et al. 2020, "REALM", section
    3.4.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rag.data.salient import title_hashes
from rag.joint.config import MlmTrainConfig
from rag.joint.fillers import Filled, Filler
from rag.joint.sentences import MaskedSentence, SentenceBatches
from rag.joint.span_filler import open_filler
from rag.training.card import Card
from rag.training.distributed import World
from rag.training.fit import Loss, Method
from rag.training.precision import MasterWeights
from rag.training.run import train
from readers.extractive.files import plain_encoder
from retrievers.examples.batches import Epochs
from retrievers.examples.corpus import open_corpus
from retrievers.training.ict import held_out_rows

# Held-out sentences.
_AT_ONCE = 32


def train_mlm(config: MlmTrainConfig) -> Path:
    """Train as `config` says, or resume the run that `config.out` holds; see
    `rag.training.run.train`.

    Returns:
        The folder of the masked language model, `config.out / "mlm"`, which `rag train realm`
        starts from.

    Raises:
        DataError: the corpus has nothing to mask.
        ConfigError: the encoder cannot be a masked language model.
    """
    if config.fills == "words":
        config = config.replaced(reader=plain_encoder(config.reader, config.out))
    return train(config, partial(build, config), "mlm")


def build(config: MlmTrainConfig, world: World) -> Method:
    """The method of `train_mlm`."""
    # model
    reader = open_filler(config, world.device, fresh=True)
    master = MasterWeights(reader, config.precision)

    # data
    store = open_corpus(config.train_files, config.out / "data", config.split)
    held_rows = held_out_rows(config, len(store), config.seed)
    rows = np.setdiff1d(np.arange(len(store)), held_rows)
    draw = partial(
        SentenceBatches,
        store,
        reader.tokenizer,
        title_hashes(store),
        min_words=config.min_words,
        sentence_tokens=config.sentence_tokens,
        recurring=True,
    )
    batches = draw(rows=rows, examples=Epochs.of(config, len(rows)))
    held_out = list[MaskedSentence]()
    if len(held_rows):
        held = Epochs(len(held_rows), _AT_ONCE, seed=config.seed, keeps_rest=True)
        drawn = draw(rows=held_rows, examples=held)
        for number in range(len(drawn)):
            held_out += drawn[number]
    return Method(
        model=reader,
        master=master,
        batches=batches,
        loss=partial(masked_loss, reader),
        export=lambda weights: reader.save(config.out / "mlm", weights),
        card=Card("rag.joint", "mlm.md", {"start": config.reader}),
        evaluate=partial(held_out_figures, reader, held_out) if held_out else None,
        facts={"passages": len(rows), "held-out sentences": len(held_out)},
    )


def masked_loss(reader: Filler, sentences: Sequence[MaskedSentence]) -> Loss:
    """−log p of the masked words: the mean over words, then over sentences and the texts beside
    them.
    """
    filled, tokens = _word_means(reader, sentences)
    figures = _figures(filled.logp.detach())
    return Loss(-filled.objective.mean(), len(sentences), tokens, parts=figures)


def held_out_figures(reader: Filler, sentences: Sequence[MaskedSentence]) -> dict[str, float]:
    """`nll`, nats per masked word beside the rest of the passage; `utility`, how many more it takes
    alone; `utility_after`, the same of the passage that follows.
    """
    reader.eval()
    parts = []
    with torch.no_grad():
        for begin in range(0, len(sentences), _AT_ONCE):
            filled, _ = _word_means(reader, sentences[begin : begin + _AT_ONCE])
            parts.append(filled.logp)
    reader.train()
    figures = _figures(torch.cat(parts))
    return {name: round(value, 4) for name, value in figures.items()}


def _figures(logp: Tensor) -> dict[str, float]:
    alone, rest, after = logp.mean(0).tolist()
    return {"nll": -rest, "utility": rest - alone, "utility_after": after - alone}


def _word_means(reader: Filler, sentences: Sequence[MaskedSentence]) -> tuple[Filled, int]:
    """Means (B, 3) over masked words, alone, beside the rest, beside what follows; number of tokens
    read.
    """
    rests = reader.tokens([sentence.rest for sentence in sentences])
    following = reader.tokens([sentence.after for sentence in sentences])
    # Sentences alone are read apart from the others: such rows are short.
    alone = reader.read(sentences, [[[]]] * len(sentences))
    beside = reader.read(sentences, list(zip(rests, following, strict=True)))
    counts = torch.tensor([len(sentence.places) for sentence in sentences])[:, None]
    counts = counts.to(alone.logp.device)
    logp = torch.cat([alone.logp, beside.logp], 1).sum(2) / counts
    objective = torch.cat([alone.objective, beside.objective], 1).sum(2) / counts
    n_tokens = sum(3 * len(sentence.ids) for sentence in sentences)
    n_tokens += sum(map(len, chain(rests, following)))
    return Filled(logp, objective), n_tokens
