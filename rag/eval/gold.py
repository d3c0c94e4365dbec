"""Gold passages of a question: their names in the question set and in an index, and their texts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from operator import attrgetter

from indexers.documents import Documents
from indexers.gold import CorpusTexts, GoldLookup, text_key
from indexers.passages import PassageStore
from rag.core.types import Passage, Question
from rag.metrics.multihop import Fact

PassageLookup = Callable[[str], Passage | None]
_NOTES = {  # what may be the matter with the gold passages of questions
    "missing": "the gold passages of {:,} questions are known, but not in this index: figures by gold "
    "passage leave them out",
    "incomplete": "the gold passages of {:,} questions are not all in this index: figures by gold "
    "passage count the others as not retrieved",
    "by_document": "the gold ids of {:,} questions name documents: passages are judged by the "
    "document that they were cut from",
}


def gold_facts(question: Question) -> tuple[Fact, ...]:
    """Supporting (title, sentence index) pairs, if the set has them."""
    return tuple(
        (gold.passage.title, sentence) for gold in question.gold for sentence in gold.supporting
    )


def gold_keys(question: Question) -> tuple[str, tuple[str, ...]]:
    """The kind of names of the question's gold passages, and the names.

    Returns:
        ("id", passage ids), ("document", ids of the documents that passages were cut from),
        ("title", article titles; multi-hop sets, whose passages have no ids) or ("", ()) if the set
        names none.

    Example:
        >>> from rag.core.types import GoldPassage
        >>> steps = tuple(GoldPassage(Passage("", title, "")) for title in ("A", "B"))
        >>> gold_keys(Question("1", "q", gold=steps))
        ('title', ('A', 'B'))
    """
    if question.gold_passage_ids:
        kind = "document" if question.gold_are_documents else "id"
        return kind, tuple(dict.fromkeys(question.gold_passage_ids))
    quoted = question.gold
    # one of several paragraphs with this title, as in SQuAD, and not a whole document
    is_paragraph = len(quoted) == 1 and bool(quoted[0].passage.text) and not quoted[0].sentences
    if question.gold_are_alternatives or is_paragraph or not quoted:
        return "", ()
    return "title", tuple(dict.fromkeys(gold.passage.title for gold in quoted))


def needs_all(question: Question) -> bool:
    """Whether all gold passages are needed (hops), and not just any of them (alternatives)."""
    return len(gold_keys(question)[1]) > 1 and not question.gold_are_alternatives


def is_yes_no(question: Question) -> bool:
    """Whether the answer is yes or no, which no passage "contains"."""
    return any(answer.strip().lower() in ("yes", "no") for answer in question.answers)


def gold_passages(question: Question, lookup: PassageLookup | None = None) -> list[Passage]:
    """The gold passages themselves, for reading without retrieval; empty if they are unknown.

    They are the passages that the set quotes: the first alone where any of them suffices. If the
    set quotes none, `lookup` finds them by the gold ids.
    """
    most = 1 if question.gold_are_alternatives else None
    quoted = [gold.passage for gold in question.gold[:most] if gold.passage.text]
    if quoted or lookup is None:
        return quoted
    found = map(lookup, question.gold_passage_ids[:most])
    return [passage for passage in found if passage is not None]


class GoldResolver:
    """Replaces the gold ids of questions by ids of the index, and counts the questions whose gold
    passages the index lacks or names otherwise.

    Attributes:
        counts: number of questions, by the names of `_NOTES`.
    """

    def __init__(self, passages: PassageStore, documents: Documents) -> None:
        self._passages = passages
        self._lookup = GoldLookup(passages, documents)
        self.counts = Counter[str]()

    @cached_property
    def _titles(self) -> CorpusTexts:
        return CorpusTexts(self._passages, of=attrgetter("title"))

    def __call__(self, question: Question) -> Question:
        """The question with gold ids of the index; without gold ids if the index lacks its gold
        passage.
        """
        kind, keys = gold_keys(question)
        if kind == "title":
            self.counts["incomplete"] += not all(key in self._titles for key in keys)
            ids = self._ids_by_text(question)
            return replace(question, gold_passage_ids=ids) if ids else question
        [found] = self._lookup.find([question])
        if found.how == "document":
            self.counts["by_document"] += 1
            return replace(question, gold_are_documents=True)
        ids = tuple(self._passages[row].id for row in found.rows)
        if ids and set(ids) <= set(keys):
            self.counts["incomplete"] += needs_all(question) and len(ids) < len(keys)
            return question
        has_gold = bool(keys) or found.how == "given"
        self.counts["missing"] += has_gold and not ids
        return replace(question, gold_passage_ids=ids)

    def _ids_by_text(self, question: Question) -> tuple[str, ...]:
        """The ids of gold paragraphs that share their titles with other passages (MuSiQue); empty
        where titles tell them apart, and where the index lacks the text of a paragraph.
        """
        titled = [self._titles.rows(gold.passage.title) for gold in question.gold]
        if max(map(len, titled)) < 2:
            return ()
        ids = []
        for gold, rows in zip(question.gold, titled, strict=True):
            key = text_key(gold.passage.text)
            for row in rows:
                if text_key(self._passages[row].text) == key:
                    ids.append(self._passages[row].id)
                    break
        return tuple(ids) if len(ids) == len(titled) else ()

    def notes(self) -> list[str]:
        """Warnings about the figures by gold passage."""
        return [
            what.format(self.counts[kind]) for kind, what in _NOTES.items() if self.counts[kind]
        ]
