"""Gold passages are judged under the ids of the index, found by id or by text, or not judged at
all.
"""

from collections.abc import Iterator
from dataclasses import replace

from rag.core.types import GoldPassage, Passage, Question
from rag.data.questions import questions_from
from rag.eval.gold import GoldResolver, gold_keys, gold_passages, needs_all


class Store:
    """Passages in a list, with the part of a passage store that is needed."""

    def __init__(self, *passages: Passage) -> None:
        self.passages = passages
        self.reads = 0

    def row_of(self, passage_id: str) -> int | None:
        rows = [row for row, passage in enumerate(self.passages) if passage.id == passage_id]
        return rows[0] if rows else None

    def __len__(self) -> int:
        return len(self.passages)

    def __getitem__(self, row: int) -> Passage:
        return self.passages[row]

    def rows(self, document: str) -> range:
        """As of the table of documents."""
        return range(0)

    def batches(self, size: int) -> Iterator[tuple[Passage, ...]]:
        self.reads += 1
        return (self.passages[i : i + size] for i in range(0, len(self.passages), size))


STORE_PASSAGES = (
    Passage("p2", "Danube", "The Danube rises\nin the Black Forest."),
    Passage("p1", "Danube (copy)", "The  Danube rises in the Black Forest."),
    Passage("p3", "Rhine", "The Rhine ends in the North Sea."),
)


def resolver_of(store: Store) -> GoldResolver:
    return GoldResolver(store, store)


def squad(name: str, context: str) -> Question:
    quoted = GoldPassage(Passage("", "Danube", context))
    return Question(name, "?", ("a",), ("Danube-0",), (quoted,))


def test_a_gold_passage_that_is_not_there_is_not_judged_and_is_counted() -> None:
    questions = [squad("q", "Another text."), Question("r", "?", gold_passage_ids=("unknown",))]
    resolver = resolver_of(Store(*STORE_PASSAGES))
    assert [q.gold_passage_ids for q in map(resolver, questions)] == [(), ()]
    assert resolver.counts["missing"] == 2
    assert "of 2 questions are known, but not in this index" in resolver.notes()[0]


def test_steps_of_which_one_is_not_there_are_counted() -> None:
    def titled(*titles: str) -> Question:
        return Question(
            "q", "?", gold=tuple(GoldPassage(Passage("", title, "text")) for title in titles)
        )

    whole = [titled("Danube", "Rhine"), Question("r", "?", gold_passage_ids=("p1", "p3"))]
    half = [titled("Danube", "Loire"), Question("r", "?", gold_passage_ids=("p1", "p9"))]
    store = Store(*STORE_PASSAGES)
    resolver = resolver_of(store)
    assert [*map(resolver, whole), *map(resolver, half)] == whole + half
    assert (+resolver.counts, store.reads) == ({"incomplete": 2}, 1)
    assert [note.partition(" not ")[0] for note in resolver.notes()] == [
        "the gold passages of 2 questions are"
    ]


def test_paragraphs_of_one_article_are_told_apart_by_their_texts() -> None:
    """As in MuSiQue; where the index has cut them otherwise, their title counts."""
    article = [Passage(str(n), "Danube", f"Paragraph {n} of the  article.") for n in range(3)]
    store = Store(*article, *STORE_PASSAGES[2:])
    texts = ["Paragraph 2 of the article.", "Paragraph 1 of the article."]
    same = Question("q", "?", gold=tuple(GoldPassage(Passage("", "Danube", t)) for t in texts))
    rhine = GoldPassage(Passage("", "Rhine", STORE_PASSAGES[2].text))
    other = replace(same, gold=(rhine, same.gold[0]))
    cut = replace(same, gold=(rhine, GoldPassage(Passage("", "Danube", "The whole article."))))
    resolved = list(map(resolver_of(store), [same, other, cut]))
    assert [gold_keys(each) for each in resolved] == [
        ("id", ("2", "1")),
        ("id", ("p3", "2")),
        ("title", ("Rhine", "Danube")),
    ]
    assert (needs_all(same), needs_all(resolved[0])) == (False, True)


def test_known_ids_and_titles_stay_and_the_corpus_is_read_for_titles_alone() -> None:
    store = Store(*STORE_PASSAGES)
    facts = {"supporting_facts": [["Danube", 0]], "context": [["Danube", ["The Danube."]]]}
    questions = [
        Question("q", "?", gold_passage_ids=("p3", "p1")),
        questions_from([{"question": "?", **facts}])[0],
        Question("n", "?", ("a",)),
    ]
    resolver = resolver_of(store)
    assert list(map(resolver, questions[::2])) == questions[::2]
    assert store.reads == 0
    assert resolver(questions[1]) == questions[1]
    assert (store.reads, resolver.notes()) == (1, [])


def test_all_positives_of_dpr_count_and_the_first_is_read() -> None:
    texts = {
        "Rhine": "The Rhine ends in the North Sea.",
        "Danube": "The Danube rises in the Black Forest.",
    }
    positives = [{"title": title, "text": text} for title, text in (*texts.items(), ("", "x"))]
    question = questions_from([{"question": "?", "positive_ctxs": positives}])[0]
    resolver = resolver_of(Store(*STORE_PASSAGES))
    assert resolver(question).gold_passage_ids == ("p3", "p2")
    assert [passage.title for passage in gold_passages(question)] == ["Rhine"]
