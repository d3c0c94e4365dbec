"""Convert multi-hop questions to training examples: one per hop, with context, positives and
negatives.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, permutations
from typing import Any

import numpy as np

from indexers.gold import CorpusTexts
from indexers.index import Index
from rag.core.arrays import Int64
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.types import Passage, Question
from rag.data.examples import Candidate, Example
from rag.runtime.seeds import Stream, generator
from retrievers.examples.batches import IGNORED, Epochs, Labels, RetrieverBatches

PassageFinder = Callable[[Passage], Passage | None]
_MOST_ORDERS = 4
_NOTE = re.compile(r"\s*\([^()]*\)$")  # of a title, such as "(river)"


def hop_examples(
    questions: Iterable[Question], *, max_hops: int = 4, find: PassageFinder | None = None
) -> Iterator[Example]:
    """Yield an example for each question, each order of its passages and each hop.

    The example of a hop has the passages before it as context; its positives are the next passage
    and then the question's others, or its alternatives, of which `HopBatches` takes the first and
    leaves the others out of the denominator. Of alternatives the first is the only hop. The
    question's other paragraphs are its negatives, and so are the passages of earlier hops. The
    example's id is `QUESTION#ORDER.HOP`.

    Args:
        questions: with gold passages.
        max_hops: questions with more are left out.
        find: returns the same passage in the corpus that will be searched, or None if it is not
            there; questions with such a passage are left out. Needed where a set names passages
            without their text.

    Source: Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense
        Retrieval".

    Note:
        The paper masks the second passage in the first hop, and keeps the first as a negative of
        the second, as here. It takes the order of bridge questions from its files, and either order
        of what is compared, as here. HotpotQA's files lack the order: it follows from who names
        whom (`hop_orders`).
    """
    left_out = Counter[str]()
    yielded = False
    for question in questions:
        named = [gold.passage for gold in question.gold]
        if not named:
            named = [Passage(name, "", "") for name in question.gold_passage_ids]
        golds = _found(named, find)
        others = list[Passage]()
        if question.gold_are_alternatives:
            named = named[:1]
            others = golds[1:]
            golds = golds[:1]
        reason = _why_left_out(named, golds, max_hops)
        if reason:
            left_out[reason] += 1
            continue
        orders = _orders_of(question, golds)
        yielded = True
        step = -(-len(orders) // _MOST_ORDERS)
        for number, order in enumerate(orders[::step]):
            path = [golds[position] for position in order]
            yield from _examples_of_path(question, number, path, others)
    for reason, count in sorted(left_out.items()):
        get_logger(__name__).warning("left out: %s: %d", reason, count)
    if not yielded:
        raise DataError(
            "no question can be trained on; the warnings say why",
            hint="give gold passages, or {index} with the ids that the set names (`rag index … --split none`)",
            arguments=["index"],
        )


def _orders_of(question: Question, golds: Sequence[Passage]) -> list[tuple[int, ...]]:
    """The orders of a question's passages: as its set states them, else as they can follow."""
    numbers = range(len(golds))
    if question.gold_passage_ids or question.gold_are_ordered:
        return [tuple(numbers)]
    if question.meta.get("type") == "comparison":
        return list(permutations(numbers))
    return hop_orders(question.text, golds)


def _found(named: Iterable[Passage], find: PassageFinder | None) -> list[Passage]:
    """The gold passages that have a text, as the corpus has them."""
    golds = []
    for passage in named:
        stored = passage if find is None else find(passage)
        if stored is not None and stored.text:
            golds.append(stored)
    return golds


def _examples_of_path(
    question: Question, number: int, path: Sequence[Passage], others: Sequence[Passage]
) -> Iterator[Example]:
    """The example of each hop of one order of a question's passages; `others` are right too."""
    context = [item.passage for item in question.context if item.passage.text]
    wrong = [Candidate(passage, "hard_negative", "question set") for passage in context]
    for hop in range(len(path)):
        right = [Candidate(passage, "positive") for passage in (*path[hop:], *others)]
        yield Example(
            f"{question.id}#{number}.{hop}",
            question.text,
            question.answers,
            (*right, *wrong),
            tuple(path[:hop]),
        )


def passage_finder(index: Index, texts: CorpusTexts) -> PassageFinder:
    """Finds a passage in an index by its text; without a text by its id, or by that of a document
    that is a single passage.

    Args:
        texts: those of the index.
    """

    def rows_of(passage: Passage) -> Sequence[int]:
        if passage.text:
            return texts.find(passage)[:1]
        row = index.passages.row_of(passage.id)
        return index.documents.rows(passage.id) if row is None else [row]

    def find(passage: Passage) -> Passage | None:
        rows = rows_of(passage)
        return index.passages[rows[0]] if len(rows) == 1 else None

    return find


class HopEpochs(Epochs):
    """Batches of all hops of `batch_size` questions; each epoch draws one order per question anew.

    Attributes:
        paths: (len(ids),) a number for the question and order of each example.
    """

    def __init__(self, ids: Sequence[str], batch_size: int, **limits: Any) -> None:
        orders: dict[str, dict[str, list[int]]] = {}
        for example, name in enumerate(ids):
            path = name.rpartition(".")[0]
            orders.setdefault(path.rpartition("#")[0], {}).setdefault(path, []).append(example)
        self._orders = [list(paths.values()) for paths in orders.values()]
        self.paths = np.empty(len(ids), np.int64)
        for number, hops in enumerate(chain.from_iterable(self._orders)):
            self.paths[hops] = number
        super().__init__(len(self._orders), batch_size, **limits)

    def __getitem__(self, step: int) -> Int64:
        """(N,) examples of batch `step`, question by question, in hop order."""
        draw = generator(self.seed, Stream.CANDIDATES, step)
        examples: list[int] = []
        for question in super().__getitem__(step).tolist():
            orders = self._orders[question]
            examples += orders[draw.integers(len(orders))]
        return np.array(examples, np.int64)


@dataclass(eq=False)
class HopBatches(RetrieverBatches):
    """Batches of hops, in which the positives of a hop are steps of a path.

    The first positive is the hop's passage. Passages of later hops are never its negatives.
    Passages of earlier hops, which the query contains, always are, even if they contain the answer,
    so that none is retrieved twice.

    Source: Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense
        Retrieval": the loss of the published code, which masks nothing else (`mask_false_negatives`
        off) and tells a hop from its own question's hard negatives only; here they are the whole
        batch's.
    """

    epochs: HopEpochs

    def _draw_positives(self, lists: Sequence[Int64], draw: np.random.Generator) -> Int64:
        return np.array([rows[0] for rows in lists], np.int64)

    def _ignore(self, labels: Labels, numbers: Int64, positives: Int64) -> None:
        paths = self.epochs.paths[numbers]
        hop, later = np.nonzero(np.triu(paths[:, None] == paths, 1))
        labels[hop, positives[later]] = IGNORED


def hop_orders(question: str, passages: Sequence[Passage]) -> list[tuple[int, ...]]:
    """The orders in which the passages can follow from the question.

    A passage whose title occurs in the question comes before one whose title does not. Of two
    others, the one that mentions the other's title comes first. Where neither rule decides, all
    orders are possible: for example both for two things that are compared.

    Example:
        >>> one, other = Passage("1", "Danube", "It rises in Germany."), Passage("2", "Germany", "A state.")
        >>> hop_orders("Where does the Danube rise?", [other, one])
        [(1, 0)]
        >>> hop_orders("Is Germany longer than the Danube?", [other, one])
        [(0, 1), (1, 0)]
    """
    words = _words(question)
    names = [_words(_NOTE.sub("", passage.title)) for passage in passages]
    texts = [_words(passage.text) for passage in passages]
    in_question = [len(name) > 2 and name in words for name in names]

    def precedes(i: int, j: int) -> bool:
        if in_question[i] != in_question[j]:
            return in_question[i]
        if in_question[i] and len(passages) == 2:
            return False
        return names[j] in texts[i] and names[i] not in texts[j]

    numbers = range(len(passages))
    before = [(i, j) for i, j in permutations(numbers, 2) if precedes(i, j)]
    all_orders = list(permutations(numbers))
    possible = [
        order for order in all_orders if all(order.index(i) < order.index(j) for i, j in before)
    ]
    return possible or all_orders


def _why_left_out(named: Sequence[Passage], golds: Sequence[Passage], max_hops: int) -> str:
    """Why a question cannot be trained on; empty if it can."""
    if not named:
        return "no gold passages"
    if len(golds) < len(named):
        return "a gold passage is not in the corpus, lacks its text, or was cut into several"
    if len({passage.content for passage in golds}) < len(golds):
        return "a gold passage comes twice"
    return f"more than {max_hops} hops" if len(golds) > max_hops else ""


def _words(text: str) -> str:
    """Lower-case words with a blank on either side of each, so that `in` looks for whole words."""
    words = re.findall(r"[^\W_]+", text.lower())
    return f" {' '.join(words)} "
