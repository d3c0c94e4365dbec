"""Made-up facts for recipes that fill in masked names: one passage tells the name of each code."""

from pathlib import Path
from typing import Any

import numpy as np

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.types import Passage
from rag.data.salient import NO_TITLES
from rag.joint.fillers import MaskedReader
from rag.joint.sentences import SentenceBatches
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import Epochs
from retrievers.examples.corpus import open_corpus
from tests.conftest import TinyModels
from tests.unit.retrievers.training.test_ict import write_corpus

NAMES = ("Danube", "Forest", "Black", "Title", "Text")
READ: dict[str, Any] = {"precision": "fp32", "max_length": 32, "pooling": "mean", "normalize": True}
SMALL: dict[str, Any] = {
    "split": "none",
    "precision": "fp32",
    "threads": 1,
    "log_every_steps": 1,
    "sentence_tokens": 32,
    "joint_tokens": 60,
    "mlm_dropout": 0.0,
}


def draw_code(draw: np.random.Generator) -> str:
    """Four letters, which stand for a thing."""
    return " ".join(draw.choice(list("efghijknopqst"), 4, replace=False))


_DRAW = np.random.default_rng(4)
_CODES = dict.fromkeys(draw_code(_DRAW) for _ in range(24))
FACTS = [(code, NAMES[n % len(NAMES)]) for n, code in enumerate(_CODES)]
SENTENCES = [f"Who wrote {code} in {name} rises?" for code, name in FACTS]
QUERIES = [f"Who wrote {code} in [MASK] rises?" for code, _ in FACTS]
TEXTS = [f"the river {code} {name}" for code, name in FACTS]


def write_passages(folder: Path, encoder: BiEncoder, texts: list[str] = TEXTS) -> Path:
    """An index of texts."""
    passages = [Passage(str(n), "", text) for n, text in enumerate(texts)]
    write_index(folder, passages, encoder=encoder, settings=BuildSettings(probes=4))
    return folder


def write_facts(place: Path, tiny: TinyModels) -> BiEncoder:
    """`sentences.jsonl`, and `index` by an encoder that hardly finds their facts, which is
    returned.
    """
    write_corpus(place / "sentences.jsonl", SENTENCES)
    encoder = BiEncoder.load(tiny.bert(place / "encoder", seed=2), **READ)
    write_passages(place / "index", encoder)
    return encoder


def found_share(encoder: BiEncoder) -> float:
    """Share of the facts that an encoder finds first."""
    vectors = encoder.encode_passages([""] * len(TEXTS), TEXTS)
    best = (encoder.encode_questions(QUERIES) @ vectors.T).argmax(1)
    return float((best == np.arange(len(TEXTS))).mean())


def sentence_batches(corpus: Path, reader: Path, cut: Path) -> SentenceBatches:
    """Masked sentences of a corpus, eight at a time."""
    store = open_corpus([corpus], cut, "none")
    return SentenceBatches(
        store,
        MaskedReader.load(reader, max_tokens=60).tokenizer,
        NO_TITLES,
        Epochs(len(store), min(8, len(store)), epochs=2, seed=1),
        sentence_tokens=32,
        min_words=3,
    )
