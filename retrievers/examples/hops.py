"""Convert multi-hop questions to training examples: one per hop, with context, positives and negatives."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, permutations
from typing import Any

import numpy as np

from indexers.gold import CorpusTexts
from indexers.passages import PassageStore
from rag.core.arrays import Bool, Int64
from rag.core.log import get_logger
from rag.core.types import Passage, Question
from rag.data.examples import Candidate, Example
from rag.runtime.seeds import generator
from retrievers.examples.batches import Epochs, RetrieverBatches
from retrievers.examples.data import CandidateLists, ExampleTable

PassageFinder = Callable[[Passage], Passage | None]
_MOST_ORDERS = 4


def hop_examples(
    questions: Iterable[Question],
    *,
    max_hops: int = 4,
    find: PassageFinder | None = None,
) -> Iterator[Example]:
    """Yield an example for each question, each order of its passages and each hop.

    The example of a hop has the passages before it as context; its positives are the next passage and then
    the other passages of the question, of which `HopBatches` takes the first and leaves the others out of the
    denominator. Alternatives are one hop; each comes first in an order of its own. The question's other
    paragraphs are its negatives, and so are the passages of earlier hops.
    The example's id is the question's with order and hop (`order_of`).

    Args:
        questions: with gold passages, which are either successive steps, or alternatives of a single hop.
        max_hops: questions with more are left out.
        find: returns the same passage in the corpus that will be searched, or None if it is not there;
            questions with such a passage are left out. Needed where a set names passages without their text.

    Source: Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval":
        first and second passage are negatives of each other's hop; the second of the same question is masked.

    Note:
        The paper masks the second passage in the first hop, and keeps the first as a negative of the second,
        as here; it knows the order of bridge questions from the data set's own annotation, which the public
        files lack: here it follows from who names whom (`hop_orders`).
    """
    counts: Counter[str] = Counter()
    for question in questions:
        golds = _golds(question, max_hops, find, counts)
        if not golds:
            continue
        negatives = [item.passage for item in question.context if item.passage.text]
        wrong = tuple(Candidate(passage, "hard_negative", "question set") for passage in negatives)
        if question.gold_are_alternatives:
            every = tuple(range(len(golds)))
            orders, ends = [(at, *every[:at], *every[at + 1 :]) for at in every], 1
        else:
            ends = len(golds)
            is_stated = bool(question.gold_passage_ids)
            orders = [tuple(range(ends))] if is_stated else hop_orders(question.text, golds)
            counts["questions of one possible order"] += ends > 1 and len(orders) == 1
        counts[f"questions of {ends} hops"] += 1
        step = -(-len(orders) // _MOST_ORDERS)
        for number, order in enumerate(orders[::step]):
            path = [golds[at] for at in order]
            for hop in range(ends):
                right = tuple(Candidate(passage, "positive") for passage in path[hop:])
                yield Example(
                    f"{question.id}#{number}.{hop}", question.text, question.answers, (*right, *wrong),
                    tuple(path[:hop]),
                )  # fmt: skip
    log = get_logger(__name__)
    for what, count in sorted(counts.items()):
        (log.warning if what.startswith("left out") else log.info)("%s: %d", what, count)


def passage_finder(passages: PassageStore) -> PassageFinder:
    """Finds a passage in a corpus by its text, or by its id if it has no text."""
    texts = CorpusTexts(passages)

    def find(passage: Passage) -> Passage | None:
        rows = texts.find(passage) if passage.text else [passages.row_of(passage.id)]
        return None if not rows or rows[0] is None else passages[rows[0]]

    return find


def order_of(example_id: str) -> tuple[str, int, int]:
    """Split an example's id into question id, number of the order and number of the hop.

    Example:
        >>> order_of("5a7#1.0")
        ('5a7', 1, 0)
    """
    question, _, place = example_id.rpartition("#")
    order, _, hop = place.partition(".")
    return question, int(order), int(hop)


class HopEpochs(Epochs):
    """Batches of all hops of `batch_size` questions; each epoch draws one order per question anew.

    Args:
        ids: of the examples (`order_of`).
        batch_size: in questions.
        limits: see `Epochs`.

    Attributes:
        paths: (len(ids),) a number for the question and order of each example.

    Example:
        >>> epochs = HopEpochs(["a#0.0", "a#0.1", "a#1.0", "a#1.1", "b#0.0"], 2)
        >>> sorted(epochs[0].tolist()) in ([0, 1, 4], [2, 3, 4])
        True
    """

    def __init__(self, ids: Sequence[str], batch_size: int, **limits: Any) -> None:
        orders: dict[str, dict[int, list[int]]] = {}
        for example, name in enumerate(ids):
            question, order, _ = order_of(name)
            orders.setdefault(question, {}).setdefault(order, []).append(example)
        self._orders = [list(found.values()) for found in orders.values()]
        self.paths = np.empty(len(ids), np.int64)
        for number, path in enumerate(chain.from_iterable(self._orders)):
            self.paths[path] = number
        super().__init__(len(self._orders), batch_size, **limits)

    def __getitem__(self, step: int) -> Int64:
        """(N,) examples of batch `step`, question by question, in hop order."""
        draw = generator(self.seed, 23, step)
        chosen = [self._orders[question] for question in super().__getitem__(step).tolist()]
        return np.array([e for orders in chosen for e in orders[draw.integers(len(orders))]], np.int64)


class HopBatches(RetrieverBatches):
    """Batches of hops, in which the positives of a hop are steps of a path.

    The first positive is the hop's passage. Passages of later hops are never its negatives. Passages of
    earlier hops, which the query contains, always are, even if they contain the answer, so that none is
    retrieved twice.

    Args:
        examples: which hops each batch holds.
        others: see `RetrieverBatches`.

    Source: Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval": the
        loss of the published code, which masks nothing else (`mask_false_negatives` off) and tells a hop from
        its own question's hard negatives only; here they are the whole batch's.
    """

    def __init__(self, data: ExampleTable, examples: HopEpochs, **others: Any) -> None:
        super().__init__(data, examples, **others)
        self._paths = examples.paths

    def _positives(self, step: int, lists: CandidateLists) -> Int64:
        places = np.flatnonzero(lists.is_positive)
        return places[np.unique(lists.owners[places], return_index=True)[1]]

    def _ignored(
        self, numbers: Int64, lists: CandidateLists, passages: Sequence[Passage], positives: Int64
    ) -> Bool:
        ignored = super()._ignored(numbers, lists, passages, positives)
        paths = self._paths[numbers]
        hop, other = np.nonzero(paths[:, None] == paths)
        ignored[hop, positives[other]] = hop < other
        return ignored


def hop_orders(question: str, passages: Sequence[Passage]) -> list[tuple[int, ...]]:
    """The orders in which the passages can follow from the question.

    A passage whose title occurs in the question comes before one whose title does not. Of two others, the one
    that mentions the other's title comes first. Where neither rule decides, all orders are possible: for
    example both for two things that are compared.

    Example:
        >>> one, other = Passage("1", "Danube", "It rises in Germany."), Passage("2", "Germany", "A state.")
        >>> hop_orders("Where does the Danube rise?", [other, one])
        [(1, 0)]
        >>> hop_orders("Is Germany longer than the Danube?", [other, one])
        [(0, 1), (1, 0)]
    """
    words, names = _words(question), [_words(_without_note(passage.title)) for passage in passages]
    texts = [_words(passage.text) for passage in passages]
    first = [len(name) > 2 and name in words for name in names]

    def precedes(i: int, j: int) -> bool:
        if first[i] != first[j]:
            return first[i]
        return (not first[i] or len(passages) > 2) and names[j] in texts[i] and names[i] not in texts[j]

    before = [(i, j) for i, j in permutations(range(len(passages)), 2) if precedes(i, j)]
    every = list(permutations(range(len(passages))))
    return [order for order in every if all(order.index(i) < order.index(j) for i, j in before)] or every


def _golds(
    question: Question, max_hops: int, find: PassageFinder | None, counts: Counter[str]
) -> list[Passage]:
    """The passages of a question, empty and counted if it cannot be used."""
    named = [gold.passage for gold in question.gold]
    named = named or [Passage(name, "", "") for name in question.gold_passage_ids]
    found = [find(passage) if find is not None else passage for passage in named]
    golds = [passage for passage in found if passage is not None and passage.text]
    if not named:
        counts["left out: no gold passages"] += 1
    elif question.gold_are_alternatives and golds:
        return golds
    elif len(golds) < len(named):
        what = "a gold passage is not in the corpus" if find else "a gold passage lacks its text"
        counts[f"left out: {what}"] += 1
    elif len({(passage.title, passage.text) for passage in golds}) < len(golds):
        counts["left out: a gold passage comes twice"] += 1
    elif len(golds) > max_hops:
        counts[f"left out: more than {max_hops} hops"] += 1
    else:
        return golds
    return []


def _without_note(title: str) -> str:
    return re.sub(r"\s*\([^()]*\)$", "", title)


def _words(text: str) -> str:
    """Lower-case words with a blank on either side of each, so that `in` looks for whole words."""
    words = re.findall(r"[^\W_]+", text.lower())
    return f" {' '.join(words)} "
