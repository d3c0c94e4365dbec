"""Training examples and results: every format, what a method needs, and what is refused."""

import gzip
import json
from pathlib import Path

import pytest

from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.examples import Candidate, Example, read_examples, write_examples, write_run
from tests.support.messages import refusal


def hit(
    id: str, title: str = "", text: str = "", score: float | None = None, **judged
) -> Candidate:
    return Candidate(Passage(id, title, text), "retrieved", score=score, **judged)


RESULTS = [
    Example(
        "q1",
        "who?",
        ("A",),
        (hit("1", "T", "x é", 1 / 3, has_answer=True), hit("2", "", "y", -2.5)),
    ),
    Example("", "when?"),
]


def test_dpr_results_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "out" / "results.json"
    assert write_examples(path, iter(RESULTS)) == 2
    assert list(read_examples(path, needs="passages")) == RESULTS[:1]
    first = json.loads(path.read_text())[0]
    assert list(first["ctxs"][0]) == ["id", "title", "text", "score", "has_answer"]
    assert write_examples(path, []) == 0
    assert json.loads(path.read_text()) == []


UNFIT = {"white space in the id of a question": ("q 1", "a"), "empty id of a passage": ("q", "")}


@pytest.mark.parametrize(("question", "passage"), UNFIT.values(), ids=UNFIT)
def test_what_a_run_cannot_hold_is_refused(tmp_path: Path, question: str, passage: str) -> None:
    with refusal(DataError):
        write_run(
            tmp_path / "x.run", [Example(question, "", candidates=(hit(passage, score=1.0),))]
        )
    assert list(tmp_path.iterdir()) == []


def test_white_space_in_the_id_of_a_passage_is_encoded_in_a_run(tmp_path: Path) -> None:
    path = tmp_path / "x.run"
    ids = ["100% my\u2003plan.md-0", "b%20c-0"]
    write_run(path, [Example("q", "", candidates=tuple(hit(id, score=1.0) for id in ids))])
    written = [line.split()[2] for line in path.read_text().splitlines()]
    assert written == ["100%25%20my%E2%80%83plan.md-0", "b%20c-0"]


def test_dpr_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "train.json.gz"
    context = {"title": "T", "text": "x", "score": "11.5", "psg_id": 7}
    records = [
        {
            "question": "a",
            "answers": ["1"],
            "positive_ctxs": [context],
            "hard_negative_ctxs": [],
            "negative_ctxs": [{**context, "text": "y"}],
        },
        {"question": "b", "answers": [], "positive_ctxs": [], "hard_negative_ctxs": [context]},
        {"question": "c", "answer": "2", "positive_ctxs": [{"text": "no title"}]},
    ]
    path.write_bytes(gzip.compress(json.dumps(records).encode()))
    result = list(read_examples(path))
    assert [example.id for example in result] == ["q1", "q3"]
    assert result[0].positives == (Passage("7", "T", "x"),)
    assert result[0].negatives == (
        Candidate(Passage("7", "T", "y"), "hard_negative", "", None, 11.5),
    )
    assert result[1].answers == ("2",)
    assert "questions left out, for lack of positives: 1 (" in caplog.text


def test_an_easy_negative_with_a_target_is_kept(tmp_path: Path) -> None:
    lists = ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")
    record: dict[str, object] = {"question": "q"}
    for target, name in enumerate(lists):
        record[name] = [{"text": name, "target": target}]
    record["negative_ctxs"] += [{"text": "untaught"}]
    (tmp_path / "scored.json").write_text(json.dumps([record]))
    [example] = read_examples(tmp_path / "scored.json", needs="targets")
    taught = {candidate.passage.text: candidate.target for candidate in example.candidates}
    assert taught == {name: target for target, name in enumerate(lists)}


def test_fid_files_and_what_a_method_needs(tmp_path: Path) -> None:
    judged = {"id": "7", "title": "T", "text": "x", "score": "2.5", "hasanswer": True}
    contexts = [judged, {"id": "8", "title": "", "text": "y"}]
    aimed = [{**context, "target": n - 0.5} for n, context in enumerate(contexts)]
    records = [
        {"id": "a", "question": "who?", "target": "1", "ctxs": contexts},
        {"id": "b", "question": "when?", "answers": ["2", "3"], "ctxs": aimed},
        {"id": "c", "question": "why?", "answers": []},
    ]
    path = tmp_path / "fid.json"
    path.write_text(json.dumps(records))
    first, second, third = read_examples(path, needs="questions")
    assert (first.answers, third.candidates) == (("1",), ())
    assert first.candidates[0] == hit("7", "T", "x", 2.5, has_answer=True)
    assert [candidate.target for candidate in second.candidates] == [-0.5, 0.5]
    assert [e.id for e in read_examples(path, needs="targets")] == ["b"]
    with refusal(DataError):
        list(read_examples(path))
    write_examples(tmp_path / "again.json", [second])
    assert list(read_examples(tmp_path / "again.json", needs="targets")) == [second]
    for wrong in ({"target": "NaN"}, {"has_answer": "false"}):
        path.write_text(json.dumps([{"question": "a", "ctxs": [{"text": "x", **wrong}]}] * 2))
        with refusal(DataError):
            list(read_examples(path, needs="targets"))


def test_bad_records_are_counted_with_their_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = json.dumps({"question": "a", "positive_ctxs": [{"text": "x"}]})
    bad = ['{"question": ""}', "{", '{"question": "a", "positive_ctxs": [{"title": "t"}]}', "[1]"]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join([good] * 50 + bad + [good] * 50))
    with refusal(DataError):
        list(read_examples(path))
    path.write_text("\n".join([*[good] * 5000, *bad]))
    assert len(list(read_examples(path))) == 5000
    assert "4 bad" in caplog.text
    hotpot = {"_id": "1", "question": "who?", "answer": "x", "context": [], "supporting_facts": []}
    squad = {"title": "T", "paragraphs": [{"qas": []}]}
    for other in (squad, hotpot, {"question": "a", "positive_ctxs": []}):
        path.write_text(json.dumps(other))
        with refusal(DataError):
            list(read_examples(path))


ASKED = "where does the Danube rise"
RIGHT = "It rises in a forest."
WRONG = "The Rhine ends in a sea."
TEVATRON = {
    "query_id": "7",
    "query": ASKED,
    "positive_passages": [{"docid": "d1", "title": "Danube", "text": RIGHT}],
    "negative_passages": [{"docid": "d2", "title": "Rhine", "text": WRONG}],
}
PAIRS = {
    "tevatron.jsonl": json.dumps(TEVATRON),
    "triplets.json": json.dumps([{"anchor": ASKED, "positive": RIGHT, "negative": WRONG}]),
    "lists.jsonl": json.dumps([ASKED, RIGHT, WRONG]),
    "flag.jsonl": json.dumps({"query": ASKED, "pos": [RIGHT], "neg": [WRONG]}),
    "triplets.csv": f"anchor,positive,negative\n{ASKED},{RIGHT},{WRONG}\n",
    "triples.train.small.tsv": f"{ASKED}\t{RIGHT}\t{WRONG}\n",
    "triples.tsv": f"{ASKED}\t{RIGHT}\t(Also) {WRONG}\n",
    "named.jsonl": json.dumps({"query_text": ASKED, "positive": RIGHT, "hard_neg_1": WRONG}),
    "margin.jsonl": json.dumps(
        {"query": ASKED, "positive": RIGHT, "negative": WRONG, "label": 0.5}
    ),
    "labels.jsonl": json.dumps({"query": ASKED, "positive": [WRONG, RIGHT], "labels": [0, 1]}),
}


def test_scores_of_a_teacher_are_targets(tmp_path: Path) -> None:
    """FlagEmbedding's; as many as there are passages, of which empty ones are left out."""
    record = {"query": ASKED, "pos": [RIGHT], "neg": ["", WRONG], "pos_scores": [3]}
    file = tmp_path / "flag.jsonl"
    file.write_text(json.dumps({**record, "neg_scores": [0.5, -1.5]}))
    [example] = read_examples(file, needs="targets")
    assert [(c.passage.text, c.target) for c in example.candidates] == [(RIGHT, 3), (WRONG, -1.5)]
    file.write_text(json.dumps({**record, "neg_scores": [0.5]}))
    with refusal(DataError):
        list(read_examples(file))


def test_scores_of_each_passage_are_targets(tmp_path: Path) -> None:
    """Those that sentence-transformers' mining writes."""
    record = {"query": ASKED, "positive": RIGHT, "negative_1": WRONG, "negative_2": "Another."}
    file = tmp_path / "mined.jsonl"
    file.write_text(json.dumps({**record, "scores": [9.5, 2, 1]}))
    [example] = read_examples(file, needs="targets")
    assert [candidate.target for candidate in example.candidates] == [9.5, 2, 1]


@pytest.mark.parametrize("label", ["label", "scores"])
def test_a_pair_that_is_labelled_as_wrong_is_no_positive(tmp_path: Path, label: str) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text(f"anchor,positive,{label}\n{ASKED},{RIGHT},1\n{ASKED},{WRONG},0.0\n")
    [example] = read_examples(file)
    assert [passage.text for passage in example.passages] == [RIGHT]
    for values in ([1, 0], 0.5):
        file.write_text(json.dumps({"anchor": ASKED, "positive": RIGHT, label: values}))
        with refusal(DataError):
            list(read_examples(file))


def test_a_malformed_passage_with_a_score_is_a_bad_record(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"query": ASKED, "positive": 5, "negative": 6, "scores": [1, 0]}))
    with refusal(DataError):
        list(read_examples(file))


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_and_triplets_are_examples(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(PAIRS[name])
    [example] = read_examples(tmp_path / name)
    assert (example.question, [p.text for p in example.positives]) == (ASKED, [RIGHT])
    assert [c.passage.text.removeprefix("(Also) ") for c in example.negatives] == [WRONG]


def test_triples_of_ids_take_their_texts_from_the_files_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "qidpidtriples.train.small.tsv"
    path.write_text("7\t1\t2\n7\t1\t3\n")
    with refusal(DataError):
        list(read_examples(path))
    (tmp_path / "queries.train.tsv").write_text(f"7\t{ASKED}\n8\tother\n")
    collection = tmp_path / "collection.tsv"
    collection.write_text(f'1\t{RIGHT}\n2\t{WRONG}\n3\t"A" quote\n')
    examples = list(read_examples(path))
    texts = [(example.question, *(p.text for p in example.passages)) for example in examples]
    assert texts == [(ASKED, RIGHT, WRONG), (ASKED, RIGHT, '"A" quote')]
    # ColBERT's has titles.
    collection.write_text(f"1\t{RIGHT}\tDanube\n2\t{WRONG}\tRhine\n3\tC\tC\n")
    assert [p.title for p in next(read_examples(path)).passages] == ["Danube", "Rhine"]
