import shlex
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.types import Hit, Passage
from rag.data.examples import read_examples
from rag.data.files.rows import write_json_lines
from rag.data.text import AnswerMatcher
from retrievers.negatives.mine import below_margin, candidates_by_rank, mine
from retrievers.negatives.settings import MiningSettings
from tests.commands import exit_code, run_successfully
from tests.support.messages import refusal

RIVER_IDS = ("p1", "p2", "p3")
RIVERS = ("Danube", "Rhine", "Elbe", "Oder", "Main", "Neckar", "Isar", "Inn", "Spree", "Havel")


def text_of(river, number):
    return (
        f"The {river} rises in forest {number} and the river flows past town {number} to the sea."
    )


@pytest.fixture(scope="module")
def index_dir(tmp_path_factory, encoder):
    out = tmp_path_factory.mktemp("mining") / "index"
    passages = [Passage(f"p{n}", river, text_of(river, n)) for n, river in enumerate(RIVERS)]
    passages.append(
        Passage("copy", "Danube again", text_of("Danube", 0).replace(" and ", "  and\n"))
    )
    passages.append(Passage("answer", "Towns", "In town 0 the river is wide."))
    write_index(out, passages, encoder=encoder, settings=BuildSettings(retriever="hybrid"))
    return out


@pytest.fixture
def questions(tmp_path):
    """The river's town is the answer; gold passages are given in every way there is."""
    rows = [
        {
            "id": "by-id",
            "question": "where does the river Danube rise",
            "answers": ["town 0"],
            "gold_passage_ids": ["p0"],
        },
        {
            "id": "by-text",
            "question": "the river Rhine flows to",
            "answers": ["town 1"],
            "positive_ctxs": [{"title": "Rhine", "text": text_of("Rhine", 1).replace(" ", "  ")}],
        },
        {
            "id": "clash",
            "question": "the river Elbe flows to",
            "answers": ["town 2"],
            "positive_ctxs": [{"id": "p0", "title": "Elbe", "text": text_of("Elbe", 2)}],
        },
        {
            "id": "overlap",
            "question": "the river Oder flows to",
            "answers": ["town 3"],
            "positive_ctxs": [
                {"title": "Oder", "text": "As we know: " + text_of("Oder", 3) + " It is long."}
            ],
        },
        {
            "id": "outside",
            "question": "the river Seine",
            "answers": ["Paris"],
            "positive_ctxs": [{"title": "Seine", "text": "Paris lies on the Seine"}],
        },
        {"id": "weak", "question": "river Isar flows past which town", "answers": ["town 6"]},
        {"id": "none", "question": "river Amazon", "answers": ["Atlantic"]},
    ]
    path = tmp_path / "questions.jsonl"
    write_json_lines(path, rows)
    return path


def mined(path):
    return {example.id: example for example in read_examples(path)}


def test_positives_are_found_in_every_way(index_dir, questions, tmp_path):
    report = mine(index_dir, questions, tmp_path / "out.json", ranks="20")
    result = mined(tmp_path / "out.json")
    assert {name: [p.id for p in example.positives] for name, example in result.items()} == {
        "by-id": ["p0"],
        "by-text": ["p1"],
        "clash": ["p2"],
        "overlap": ["p3"],
        "outside": [""],
        "weak": ["p6"],
    }
    counts = report["counts"]
    ways = {k.removeprefix("positive "): v for k, v in counts.items() if k.startswith("positive ")}
    assert ways == {"id": 1, "text": 2, "overlap": 1, "given": 1, "weak": 1, "none": 1}
    assert (counts["questions"], counts["examples"], counts["written"]) == (7, 6, 6)
    assert counts["gold passages outside the corpus"] == 1
    ids = {negative.passage.id for negative in result["by-id"].negatives}
    assert not ids & {"p0", "copy", "answer"}  # the gold passage, its copy, and one with the answer
    for example in result.values():
        matcher = AnswerMatcher(example.answers)
        assert example.negatives
        assert not any(matcher.matches(negative.passage.text) for negative in example.negatives)
        assert all(negative.source == "bm25" for negative in example.negatives)
        ranks = [negative.rank for negative in example.negatives]
        assert ranks == sorted(ranks)
    assert {p.name for p in tmp_path.iterdir()} == {
        "out.json",
        "out.json.report.json",
        "questions.jsonl",
    }


def test_provenance_is_that_of_the_searches(index_dir, questions, tmp_path, encoder):
    mine(index_dir, questions, tmp_path / "out.json", source="both", ranks="2:6")
    with Index.open(index_dir) as index:
        for example in mined(tmp_path / "out.json").values():
            scores = index.embeddings.rows(np.arange(len(index.passages)))
            scores = scores @ encoder.encode_questions([example.question])[0]
            dense = [index.passages[int(row)].id for row in np.argsort(-scores, kind="stable")]
            bm25 = [
                index.passages[row].id for row, _ in index.lucene.search([example.question], 20)[0]
            ]
            for negative in example.negatives:
                assert 2 <= negative.rank <= 6
                ranking = dense if negative.source.startswith("dense") else bm25
                assert ranking[negative.rank - 1] == negative.passage.id


def test_margin(index_dir, questions, tmp_path, encoder):
    mine(index_dir, questions, tmp_path / "out.json", margin=0.99)
    for example in mined(tmp_path / "out.json").values():
        vector = encoder.encode_questions([example.question])[0]
        gold = example.positives[0]
        limit = encoder.encode_passages([gold.title], [gold.text])[0] @ vector
        limit -= 0.01 * abs(limit)
        for negative in example.negatives:
            score = (
                encoder.encode_passages([negative.passage.title], [negative.passage.text])[0]
                @ vector
            )
            assert score <= limit + 1e-2 * abs(limit)  # stored vectors are rounded


def test_union_of_two_rounds(index_dir, questions, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    mine(index_dir, questions, first, per_question=2, limit=3)
    settings = {"source": "dense", "per_question": 2, "ranks": "3:100"}
    alone = mine(index_dir, questions, tmp_path / "alone.json", **settings, limit=5)
    report = mine(index_dir, questions, second, **settings, limit=5, merge=first)
    both, one, other = mined(second), mined(first), mined(tmp_path / "alone.json")
    assert report["counts"]["written"] == len(both) == 5 == alone["counts"]["examples"]
    for name in one:
        texts = {n.passage.text for n in one[name].negatives + other[name].negatives}
        assert {n.passage.text for n in both[name].negatives} == texts
        assert both[name].negatives[:2] == other[name].negatives
    mine(index_dir, questions, second, **settings, limit=1, merge=first)
    assert list(mined(second)) == ["by-id", "by-text", "clash"]


def test_the_union_keeps_what_has_a_target(index_dir, questions, tmp_path):
    """Also of passages that are no hard negatives."""
    asked = {"question": "where does the river Danube rise", "positive_ctxs": [{"text": "It."}]}
    other = {
        "negative_ctxs": [{"text": "No.", "target": 0.5}],
        "hard_negative_ctxs": [{"text": "Hm"}],
    }
    write_json_lines(tmp_path / "first.jsonl", [{**asked, **other}])
    mine(index_dir, questions, tmp_path / "o.json", limit=1, merge=tmp_path / "first.jsonl")
    [example] = read_examples(tmp_path / "o.json", needs="questions")
    assert [(c.passage.text, c.target) for c in example.of_role("negative")] == [("No.", 0.5)]


def test_blocks_of_other_questions_are_not_gone_on_with(index_dir, tmp_path, monkeypatch):
    """A folder's files are compared, too."""
    (tmp_path / "qrels").mkdir()
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"_id": "q", "text": "Which river?"}')
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp2\t1\n")

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr("retrievers.negatives.mine.write_examples", stop)
        mine(index_dir, tmp_path, tmp_path / "o.json")
    queries.write_text('{"_id": "q", "text": "Which other river?"}')
    with refusal(MismatchedArtifactError):
        mine(index_dir, tmp_path, tmp_path / "o.json")


def test_what_cannot_be_done_is_said(index_dir, questions, tmp_path):
    bm25 = tmp_path / "bm25"
    write_index(bm25, [Passage("a", "", "Some text.")], settings=BuildSettings(retriever="bm25"))
    with refusal(ConfigError):
        mine(bm25, questions, tmp_path / "o.json", source="dense")
    with refusal(ConfigError):
        mine(bm25, questions, tmp_path / "o.json", margin=0.9)
    lonely = tmp_path / "lonely.jsonl"
    lonely.write_text('{"question": "river Amazon", "answers": ["Atlantic"]}')
    with refusal(DataError):
        mine(bm25, lonely, tmp_path / "o.json")
    assert not (tmp_path / "o.json.mining").exists()
    for wrong in ("x", "5:", "9:3", "0:4"):
        with pytest.raises(ValidationError, match="expected first:last"):
            MiningSettings(ranks=wrong)


def test_the_question_itself_is_no_negative(index_dir, tmp_path):
    """As in BEIR's ArguAna and Quora, whose questions are documents of the corpus."""
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text(f'{{"_id": "p1", "text": "{text_of("Rhine", 1)}"}}')
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\np1\tp2\t1\n")
    mine(index_dir, tmp_path, tmp_path / "o.json", source="bm25", per_question=9)
    example = mined(tmp_path / "o.json")["p1"]
    assert len(example.negatives) == 9
    assert "p1" not in [negative.passage.id for negative in example.negatives]


def test_gold_of_another_record_of_the_question_is_no_negative(index_dir, tmp_path):
    rows = [
        {"id": gold, "question": "Which river?", "gold_passage_ids": [gold]} for gold in RIVER_IDS
    ]
    write_json_lines(tmp_path / "q.jsonl", rows)
    mine(index_dir, tmp_path / "q.jsonl", tmp_path / "o.json", per_question=9, limit=1)
    example = mined(tmp_path / "o.json")["p1"]
    assert example.negatives
    assert not {negative.passage.id for negative in example.negatives} & set(RIVER_IDS)


def test_the_printed_command_trains_without_any_negative(index_dir, tmp_path, capsys, monkeypatch):
    """Every passage holds each answer; the log says how many questions are held out, and which
    setting ends the run.
    """
    monkeypatch.chdir(tmp_path)
    asked = [
        {"question": f"{river}?", "answers": ["the river"], "gold_passage_ids": [f"p{n}"]}
        for n, river in enumerate(RIVERS)
    ]
    write_json_lines(Path("questions.jsonl"), asked)
    mining = ("mine", "--index", index_dir, "--questions", "questions.jsonl", "--out", "mined.json")
    printed = run_successfully(*mining)
    assert "negatives 0" in printed
    words = shlex.split(printed.partition("train: rag ")[2])
    for setting in ("passage_tokens=64", "validation_fraction=0.1", "max_steps=9"):
        words += ["--set", setting]
    assert exit_code(*words) == 0
    logged = capsys.readouterr().err
    assert "2 of 10 questions are held out" in logged
    assert "epochs=1 ends the run before max_steps=9" in logged


def test_the_margin_of_a_positive_below_zero():
    hits = [Hit(row, str(row), 9.0 - row) for row in range(3)]
    candidates = candidates_by_rank({"bm25": hits}, range(1, 4))
    below = below_margin(candidates, np.array([0.96, 0.95, -1.0]), 1.0, 0.95)
    assert [c.row for c in below] == [1, 2]
    below = below_margin(candidates, np.array([-0.9, -1.04, -1.06]), -1.0, 0.95)
    assert [c.row for c in below] == [2]


def test_patterns_are_known_from_the_question_file(index_dir, tmp_path):
    """Without the file's word a pattern would be looked for as it is spelt, and found nowhere."""
    with Index.open(index_dir) as index:
        words = index.passages[0].text.split()
    asked = {"id": "q", "question": " ".join(words[:4]), "answers": [rf"{words[2]}\s+{words[3]}"]}
    path = tmp_path / "trec.jsonl"
    write_json_lines(path, [{**asked, "answers_are_regex": True}])
    mine(index_dir, path, tmp_path / "out.json", ranks="20")
    example = mined(tmp_path / "out.json")["q"]
    assert example.answer_profile == "trec_search"
    assert AnswerMatcher(example.answers, "trec_search").matches(example.positives[0].text)
    write_json_lines(path, [asked])
    with refusal(DataError):
        mine(index_dir, path, tmp_path / "plain.json", ranks="20")
