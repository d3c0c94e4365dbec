"""Multi-hop questions become one example a hop, in the orders in which they can be answered."""

from dataclasses import replace

from indexers.documents import Put
from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.errors import DataError
from rag.core.types import GoldPassage, Passage, Question
from retrievers.examples.hops import hop_examples, passage_finder
from tests.support.messages import refusal
from tests.unit.indexers.conftest import WordEncoder

DANUBE = Passage("", "Danube", "The Danube rises in Germany.")
GERMANY = Passage("", "Germany (state)", "Germany has the capital Berlin.")
BERLIN = Passage("", "Berlin", "Berlin has a zoo.")
RHINE = Passage("", "Rhine", "It is a river.")


def question(text, *golds, **fields):
    gold = tuple(map(GoldPassage, golds))
    return Question(fields.pop("id", "q"), text, ("a",), gold=gold, **fields)


def titles(examples):
    """Id, titles of the context, titles of the positives."""
    return [
        (example.id, [p.title for p in example.context], [p.title for p in example.positives])
        for example in examples
    ]


def test_a_bridge_is_crossed_one_way_and_the_passage_beyond_it_is_masked_not_wrong():
    asked = question(
        "Capital of where the Danube rises?", GERMANY, DANUBE, context=(GoldPassage(RHINE),)
    )
    examples = list(hop_examples([asked]))
    assert titles(examples) == [
        ("q#0.0", [], ["Danube", "Germany (state)"]),
        ("q#0.1", ["Danube"], ["Germany (state)"]),
    ]
    assert [[n.passage.title for n in example.negatives] for example in examples] == [
        ["Rhine"],
        ["Rhine"],
    ]


def test_what_is_compared_comes_in_both_orders():
    examples = list(hop_examples([question("Is the Danube longer than the Rhine?", DANUBE, RHINE)]))
    assert [example.id for example in examples] == ["q#0.0", "q#0.1", "q#1.0", "q#1.1"]
    assert [e.positives[0].title for e in examples] == ["Danube", "Rhine", "Rhine", "Danube"]


def test_the_order_and_the_type_that_a_set_states_are_taken():
    golds = (GERMANY, DANUBE)  # the Danube names Germany, which does not name the Danube
    asked = question("What is named here?", *golds)
    assert [e.positives[0].title for e in hop_examples([asked])] == ["Danube", "Germany (state)"]
    stated = replace(asked, gold_are_ordered=True)
    assert [e.positives[0].title for e in hop_examples([stated])] == ["Germany (state)", "Danube"]
    compared = replace(asked, meta={"type": "comparison"})
    assert [e.id for e in hop_examples([compared])] == ["q#0.0", "q#0.1", "q#1.0", "q#1.1"]


def test_given_passage_ids_are_in_hop_order_and_alternatives_are_one_hop_and_not_wrong():
    corpus = {p.title: Passage(p.title, p.title, p.text) for p in (DANUBE, GERMANY)}
    stated = Question("s", "who?", gold_passage_ids=("Germany (state)", "Danube"))
    either = question("who?", DANUBE, RHINE, id="e", gold_are_alternatives=True)
    result = hop_examples([stated], find=lambda passage: corpus.get(passage.id))
    assert titles(result) == [
        ("s#0.0", [], ["Germany (state)", "Danube"]),
        ("s#0.1", ["Germany (state)"], ["Danube"]),
    ]
    assert titles(hop_examples([either])) == [("e#0.0", [], ["Danube", "Rhine"])]


def test_ids_may_be_of_documents_that_are_one_passage(tmp_path, caplog):
    """An index whose documents were cut has other ids for its passages."""
    documents = {"d1": [DANUBE], "d2": [GERMANY], "d3": [BERLIN, RHINE]}
    puts = [
        Put(name, "", [replace(p, id=f"{name}-{number}") for number, p in enumerate(passages)])
        for name, passages in documents.items()
    ]
    write_index(tmp_path / "index", puts, encoder=WordEncoder(), settings=BuildSettings(probes=2))
    asked = [
        Question("one", "who?", gold_passage_ids=("d1", "d2-0")),
        Question("cut", "who?", gold_passage_ids=("d1", "d3")),
    ]
    with Index.open(tmp_path / "index") as index:
        find = passage_finder(index, CorpusTexts(index.passages))
        result = titles(hop_examples(asked, find=find))
    assert result == [
        ("one#0.0", [], ["Danube", "Germany (state)"]),
        ("one#0.1", ["Danube"], ["Germany (state)"]),
    ]
    assert "or was cut into several: 1" in caplog.text


def test_what_cannot_be_used_is_counted_by_reason(caplog):
    asked = [
        question("who?", id="nothing"),
        question("who?", DANUBE, DANUBE, id="twice"),
        question("who?", DANUBE, GERMANY, BERLIN, id="far"),
        question("who?", DANUBE, Passage("", "Rhine", ""), id="named"),
        question("who?", DANUBE, id="good"),
    ]
    assert [e.id for e in hop_examples(asked, max_hops=2)] == ["good#0.0"]
    reasons = (
        "no gold passages",
        "a gold passage comes twice",
        "more than 2 hops",
        "or was cut into several",
    )
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 4
    assert all(any(f"{reason}: 1" in warning for warning in warnings) for reason in reasons)
    caplog.clear()
    with refusal(DataError):
        list(hop_examples(asked[-1:], find=lambda passage: None))
    assert "a gold passage is not in the corpus, lacks its text, or was cut into" in caplog.text
