"""Questions in other words: a word that question and passage share is replaced by one of like meaning.

A reader that has learnt from questions worded like their passage looks for the words themselves. The teacher
reads the question as it was asked and the student the reworded one, so that both get the same answer.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import torch

from rag.core.arrays import Bool, Int32, Int64
from rag.core.log import get_logger
from rag.runtime.backbone import load_backbone, pad, pool, run_backbone
from rag.runtime.model_files import embedded_encoder_dir
from readers.extractive.layout import continuations

_NEIGHBOURS, _LEAST_COSINE = 4, 0.62
_FUNCTION_WORDS = 120  # the most frequent words of questions stay
_REPLACED = 0.6  # probability of a shared word
_BATCH = 512
_INSIDE_SENTENCE = re.compile(r"(?<![.!?] )(?<!^)\b[A-Za-z]+\b")
_OPPOSITES = [
    frozenset(pair)
    for pair in re.findall(
        r"(\w+)/(\w+)",
        """high/low higher/lower highest/lowest small/large smaller/larger top/bottom men/women male/female
        males/females north/south east/west northern/southern eastern/western before/after most/least
        more/less increase/decrease minimum/maximum husband/wife father/mother son/daughter start/end
        open/close buy/sell win/lose up/down left/right good/bad early/late old/new accept/reject
        cause/prevent""",
    )
]
_NUMBERS = frozenset(
    re.findall(
        r"\w+",
        """one two three four five six seven eight nine ten eleven twelve twenty thirty hundred thousand
        million billion first second third fourth fifth sixth seventh eighth ninth tenth single double triple
        half quarter monday tuesday wednesday thursday friday saturday sunday""",
    )
)


@dataclass(frozen=True, slots=True)
class Rewording:
    """Replacements of tokens.

    Attributes:
        neighbours: (V, 4) int64 ids of tokens of like meaning; 0 where a token has none.
        continues: (V,) whether a token continues a word, which then stays.
    """

    neighbours: Int64
    continues: Bool

    @classmethod
    def learn(cls, tokenizer: Any, questions: Iterable[Int32], texts: Iterable[str]) -> "Rewording":
        """Find neighbours by the cosine of the embedded encoder's vectors of single words.

        Numbers, the most frequent words of questions, and words that stand in the texts with a capital more
        often than without have none.

        Args:
            questions: token ids of each question.
            texts: passages, in their own case.
        """
        names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        counts = Counter(token for question in questions for token in question.tolist())
        frequent = {token for token, _ in counts.most_common(_FUNCTION_WORDS)}
        lower, capital = Counter[str](), Counter[str]()
        for text in texts:
            for word in _INSIDE_SENTENCE.findall(text):
                (capital if word[0].isupper() else lower)[word.lower()] += 1
        words = [
            token
            for token, name in enumerate(names)
            if len(name) > 2 and lower[name] > 0 and lower[name] >= capital[name]
            and token not in frequent and name not in _NUMBERS
        ]  # fmt: skip
        neighbours, continues = np.zeros((len(names), _NEIGHBOURS), np.int64), continuations(tokenizer)
        if not words:
            get_logger(__name__).warning("nothing to reword: no word of the passages is a single token")
            return cls(neighbours, continues)
        vectors = _word_vectors([names[token] for token in words])
        count = min(2 * _NEIGHBOURS + 1, len(words))  # the nearest is the word itself
        cosines, rows = faiss.knn(vectors, vectors, count, metric=faiss.METRIC_INNER_PRODUCT)
        for token, scores, places in zip(words, cosines[:, 1:], rows[:, 1:], strict=True):
            own = {opposite for pair in _OPPOSITES if names[token] in pair for opposite in pair}
            near = [words[i] for i in places[scores > _LEAST_COSINE] if names[words[i]] not in own]
            if near:
                neighbours[token] = (near * _NEIGHBOURS)[:_NEIGHBOURS]
        return cls(neighbours, continues)

    def apply(self, ids: Int64, question: slice, text: Bool, draw: np.random.Generator) -> None:
        """Reword the question of one group's rows, in place.

        Args:
            ids: (P, L) token ids; the rows' questions are equal and stand at `question`.
            text: (P, L) tokens of the passages.
        """
        tokens, after = ids[0, question], ids[0, question.start + 1 : question.stop + 1]
        shared = np.isin(tokens, ids[text]) & (self.neighbours[tokens, 0] > 0) & ~self.continues[after]
        shared &= draw.random(len(tokens)) < _REPLACED
        others = self.neighbours[tokens, draw.integers(_NEIGHBOURS, size=len(tokens))]
        ids[:, question] = np.where(shared, others, tokens)


@torch.inference_mode()
def _word_vectors(words: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """(n, D) unit vectors of single words, by the embedded encoder."""
    from transformers import AutoTokenizer

    folder = embedded_encoder_dir()
    encoder, tokenizer = load_backbone(folder), AutoTokenizer.from_pretrained(folder)
    parts = []
    for begin in range(0, len(words), _BATCH):
        ids, mask = pad(tokenizer(list(words[begin : begin + _BATCH]))["input_ids"], tokenizer.pad_token_id)
        vectors = pool(run_backbone(encoder, ids, mask)[0], mask, "mean")
        parts.append(torch.nn.functional.normalize(vectors, dim=-1))
    return torch.cat(parts).numpy()
