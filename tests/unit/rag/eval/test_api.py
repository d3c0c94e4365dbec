"""Evaluating and comparing in one call."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ir_measures
import pytest

import rag
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.types import AnswerSet, GoldPassage, Hit, Passage, Question
from rag.data.examples import Candidate, Example, read_examples, write_run
from rag.eval.api import REPORT_NAME
from rag.eval.results import load_evaluation
from rag.eval.systems import open_results
from rag.policies import SearchOnce, State, Step
from readers.protocols import ReadRequest
from retrievers.protocols import Retriever
from tests.commands import run_command, run_successfully
from tests.pipeline_parts import LastWordsReader
from tests.support.files import write_files
from tests.support.messages import refusal
from tests.support.reading import MadeReader

TEXTS = {
    "Danube": "The Danube rises in the Black Forest and ends in the Black Sea.",
    "Rhine": "Near Rotterdam the Rhine ends in the North Sea.",
    "Oslo": "Oslo is the capital of Norway and lies on a fjord.",
    "Rome": "Rome is the capital of Italy and lies on the Tiber.",
}
PASSAGES = [Passage(title.lower(), title, text) for title, text in TEXTS.items()]
QUESTIONS = [
    Question(f"q{number}", text, (answer,), gold=(GoldPassage(PASSAGES[number]),))
    for number, (text, answer) in enumerate(
        [
            ("Where does the Danube rise?", "Black Forest"),
            ("Where does the Rhine end?", "North Sea"),
            ("What is the capital of Norway?", "Oslo"),
            ("What is the capital of Italy?", "Rome"),
        ]
    )
]


# A question whose gold passage is "a".
JUDGED = [Question("1", "which?", gold_passage_ids=("a",))]


def reciprocal_rank(run: Path, questions: Any = JUDGED) -> float:
    return rag.evaluate(None, questions, run=run).figures["RR"].value


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("api") / "index"
    rag.Pipeline.from_texts(PASSAGES, out=place, reader=False).close()
    return place


def test_evaluate_and_compare_from_python(index: Path, tmp_path: Path) -> None:
    result = rag.evaluate(
        index=index, questions=QUESTIONS, out=tmp_path / "two", reader=False, ks=(1, 2)
    )
    assert result.figures["top2"].value == 1.0
    assert result.figures["R@5"].n == 4  # gold passages were found in the index by their text
    assert result.figures["top2"].low < 1.0
    assert "Answer in top 1" in str(result)
    assert (result.folder / REPORT_NAME).is_file()
    # An iterator is read once, and records outlive the evaluation that nobody holds.
    records = rag.evaluate(index=index, questions=iter(QUESTIONS), reader=False).records()
    assert [record.id for record in records] == ["q0", "q1", "q2", "q3"]
    other = rag.evaluate(index=index, questions=QUESTIONS, reader=False, ks=(1, 2), seed=1)
    [*rows] = rag.compare([result, other], report=tmp_path / "page.html")
    assert {row.figure for row in rows} == {"top1", "mrr", "nDCG@10", "RR", "R@5", "R@20"}
    assert all(row.result.difference.value == 0 for row in rows)
    assert "<html" in (tmp_path / "page.html").read_text()


def test_results_of_another_program_are_scored_like_a_search(index: Path, tmp_path: Path) -> None:
    ids = [passage.id for passage in PASSAGES]
    judged = [
        replace(q, gold=(), gold_passage_ids=(id,)) for q, id in zip(QUESTIONS, ids, strict=True)
    ]
    ours = rag.evaluate(index, judged, tmp_path / "ours", reader=False, ks=(1, 2), read=2)
    again = rag.evaluate(index, judged, tmp_path / "run", run=ours.folder / "run.trec", ks=(1, 2))
    assert {name: again.figures[name].value for name in ours.figures} == {
        name: figure.value for name, figure in ours.figures.items()
    }
    assert all(row.result.difference.value == 0 for row in rag.compare([ours, again]))
    short = rag.evaluate(index, judged, tmp_path / "short", run=ours.folder / "run.trec")
    assert not {"R@5", "R@20", "nDCG@10"} & {*short.figures}  # two passages are known
    alone = rag.evaluate(None, judged, run=ours.folder / "run.trec")
    assert "top1" not in alone.figures  # nothing says what stands in the passages
    assert alone.figures["RR"].value == ours.figures["RR"].value
    assert "Median ms" not in str(alone)
    assert {row.figure for row in rag.compare([ours, alone])} >= {"RR"}
    with pytest.raises(MismatchedArtifactError, match="index_version"):
        rag.evaluate(None, judged, tmp_path / "run", run=ours.folder / "run.trec", ks=(1, 2))
    # Other values to group by, with the same questions and answers.
    grouped = [replace(question, meta={"kind": "a"}) for question in judged]
    with pytest.raises(MismatchedArtifactError, match="sha256"):
        rag.evaluate(index, grouped, tmp_path / "ours", reader=False, ks=(1, 2), read=2)
    results = [
        {"question": q.text, "answers": list(q.answers), "ctxs": [p.to_json()]}
        for q, p in zip(judged, PASSAGES, strict=True)
    ]
    asked = {"question": results[0]["question"]}
    results.append(results[0])
    (tmp_path / "found.json").write_text(json.dumps(results))
    result = rag.evaluate(None, judged, run=tmp_path / "found.json")
    assert result.figures["top1"].value == result.figures["RR"].value == 1.0
    (tmp_path / "twice.json").write_text(json.dumps([*results, {**results[1], **asked}]))
    with refusal(DataError):
        rag.evaluate(None, judged, run=tmp_path / "twice.json")
    with refusal(DataError):
        rag.evaluate(None, judged, run=tmp_path / "nothing.run")
    (tmp_path / "whole.run").write_text("1 Q0 document 1 1.0 x\n")
    with refusal(DataError):
        rag.evaluate(index, judged, run=tmp_path / "whole.run")
    # Of Pyserini.
    (tmp_path / "theirs.json").write_text('{"1": {"question": "who?", "contexts": []}}')
    with refusal(DataError):
        rag.evaluate(None, judged, run=tmp_path / "theirs.json")
    # A run without its index does not say which page a passage is of.
    with refusal(ConfigError):
        rag.evaluate(None, judged, run=tmp_path / "found.json", profile="kilt")


def test_ids_with_white_space_are_judged_in_a_run_alone(tmp_path: Path) -> None:
    found = [Candidate(Passage(name, "", ""), "retrieved") for name in ("100% wool", "a%20b")]
    write_run(tmp_path / "a.run", [Example("1", "", candidates=tuple(found))])
    for rank, name in enumerate(("100% wool", "a%20b"), start=1):
        judged = [Question("1", "which?", gold_passage_ids=(name,))]
        result = rag.evaluate(None, judged, run=tmp_path / "a.run")
        assert result.figures["RR"].value == 1 / rank
        [record] = result.records()
        assert [hit.id for hit in record.hits] == [
            "100% wool" if rank == 1 else "100%25%20wool",
            "a%20b",
        ]
    with refusal(DataError):
        rag.evaluate(
            None, [Question("1", "which?", gold=QUESTIONS[0].gold * 2)], run=tmp_path / "a.run"
        )
    with refusal(ConfigError, "run"):
        rag.evaluate(None, judged, run=tmp_path / "a.run", retriever="bm25", reader="qwen")
    assert rag.evaluate(None, judged, run=tmp_path / "a.run", reader=False).figures


def test_ties_are_ordered_as_trec_eval_orders_them(tmp_path: Path) -> None:
    """Also of scores that differ beyond 32 bits; our runs have no ties."""
    run = tmp_path / "ties.run"
    for scores in (("1.0", "1.0"), ("1.00000002", "1.00000001")):
        run.write_text(
            "".join(f"1 Q0 {name} 1 {s} x\n" for name, s in zip("ab", scores, strict=True))
        )
        theirs = ir_measures.calc_aggregate(
            [ir_measures.RR], [ir_measures.Qrel("1", "a", 1)], ir_measures.read_trec_run(str(run))
        )
        assert reciprocal_rank(run) == theirs[ir_measures.RR] == 0.5
        found = [
            Candidate(Passage(name, "", ""), "retrieved", score=float(s))
            for name, s in zip("ab", scores, strict=True)
        ]
        write_run(run, [Example("1", "", candidates=tuple(found))])
        assert reciprocal_rank(run) == 1.0


def test_a_run_is_judged_as_deep_as_ks_and_it_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Passages that are read by default make it no deeper, and a run of 50 is no run of 20."""
    lines = [f"1 Q0 p{rank} {rank} {-rank} x\n" for rank in range(1, 51)]
    run = write_files(tmp_path, {"deep.run": "".join(lines)}) / "deep.run"
    for rank, ks, figure in ((45, (1, 5, 20, 100), 1 / 45), (15, (10,), 0), (15, (20,), 1 / 15)):
        judged = [Question("1", "which?", gold_passage_ids=(f"p{rank}",))]
        caplog.clear()
        result = rag.evaluate(None, judged, run=run, ks=ks)
        assert [result.figures[name].value for name in ("RR", "AP")] == [figure, figure]
        note = f"deep.run holds up to 50 passages for a question: the first {ks[-1]} count"
        assert (note in caplog.text) == (ks[-1] < 50)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("ranking.tsv", "1\tb\t1\t9.5\n1\ta\t2\t8.5\n"),
        ("run.json", '{"1": {"a": 0.5, "b": 2}, "2": {}}'),
        ("run.json", '{"2": {}, "1": {"a": 0.5, "b": 2}}'),
        ("run.json", '{\n  "2": {\n    "a": -1\n  },\n  "1": {"c": -3e2, "b": 2, "a": 1}}'),
    ],
)
def test_runs_of_colbert_ranx_and_beir(tmp_path: Path, name: str, data: str) -> None:
    """Of which the ids alone are known: nothing says what stands in the passages."""
    answered = [replace(question, answers=("a",)) for question in JUDGED]
    run = write_files(tmp_path, {name: data}) / name
    result = rag.evaluate(None, answered, run=run)
    assert result.figures["RR"].value == 0.5
    assert "mrr" not in result.figures


BAD_RUNS = {
    "two runs": "1 Q0 a 1 2.0 x\n1 Q0 a 1 9.0 other\n",
    "score that is no number": "1 Q0 a 1 2.0 x\n1 Q0 b 1 nan x\n",
    "whole numbers that are no ranks": "1 b 90\n1 a 80\n",
    "a score without decimals": "1 b 1.5\n1 a 1\n1 c 0.5\n",
    "ranks that begin with 2": "1 b 2\n1 a 1\n2 a 2\n",
    "four columns": "1 a 3 x\n",
}


@pytest.mark.parametrize("found", ['{"a": 0.5, "b": null}', '{"a": NaN}', '{"a": 1}, "2": ["a"]'])
def test_scores_that_are_none_are_refused_in_json(tmp_path: Path, found: str) -> None:
    run = write_files(tmp_path, {"run.json": f'{{"1": {found}}}'}) / "run.json"
    with refusal(DataError):
        reciprocal_rank(run)


@pytest.mark.parametrize("lines", BAD_RUNS.values(), ids=BAD_RUNS)
def test_runs_that_cannot_be_judged_are_refused(tmp_path: Path, lines: str) -> None:
    run = write_files(tmp_path, {"bad.run": lines}) / "bad.run"
    with refusal(DataError):
        reciprocal_rank(run)


def test_a_finished_evaluation_keeps_its_notes(index: Path, tmp_path: Path) -> None:
    elsewhere = replace(QUESTIONS[0], gold=(), gold_passage_ids=("nowhere",))
    asked = [elsewhere, *QUESTIONS[1:]]
    for _ in range(2):
        result = rag.evaluate(index, asked, tmp_path / "r", reader=False)
        [note] = result.notes
        assert "of 1 questions are known, but not in this index" in note
    assert load_evaluation(tmp_path / "r").notes == result.notes
    # Only of the questions that were drawn.
    gone = [replace(elsewhere, id=str(number)) for number in range(5)]
    drawn = rag.evaluate(index, gone, reader=False, sample=2)
    assert "of 2 questions are known, but not in this index" in drawn.notes[0]
    assert note in (tmp_path / "r" / REPORT_NAME).read_text()


def test_a_confidence_that_is_none_is_refused_at_the_first_question(index: Path) -> None:
    asked = list[str]()

    def confident(confidence: float) -> MadeReader:
        def answer(request: ReadRequest) -> AnswerSet:
            asked.append(request.question)
            return AnswerSet(request.question, (), confidence)

        return MadeReader(answer)

    result = rag.evaluate(index, QUESTIONS, reader=confident(1.0000001))
    assert result.metrics["calibration"]["n"] == 4
    asked.clear()
    with refusal(DataError):
        rag.evaluate(index, QUESTIONS, reader=confident(1.1), batch_size=1)
    assert len(asked) == 1


def test_a_score_of_zero_in_results_of_another_program_keeps_its_rank(tmp_path: Path) -> None:
    found = [
        {"id": passage.id, "title": "", "text": passage.text, "score": score}
        for passage, score in zip(PASSAGES, ("2.0", "0.0", "-0.5"), strict=False)
    ]
    results = [{"question": "Who?", "answers": ["nobody"], "ctxs": found}]
    path = tmp_path / "found.json"
    path.write_text(json.dumps(results))
    system, _ = open_results(path, None)
    assert system.find is not None
    ranking = system.find(Question("q", "Who?", ("nobody",)), 10)
    assert [hit.score for hit, _ in ranking] == [2.0, 0.0, -0.5]


def test_pipelines_and_own_retrievers_are_evaluated(index: Path, tmp_path: Path) -> None:
    class Reversed(Retriever):
        def __init__(self, rows: int) -> None:
            self.rows = rows

        def search(self, questions: list[str], top_k: int, **_: object) -> list[list[Hit]]:
            hits = [Hit(row, PASSAGES[row].id, float(row)) for row in reversed(range(self.rows))]
            return [hits[:top_k] for _ in questions]

    mine = rag.evaluate(index, QUESTIONS, tmp_path / "mine", retriever=Reversed(4), reader=False)
    assert (mine.figures["top1"].value, mine.figures["top5"].value) == (0.25, 1.0)
    with refusal(MismatchedArtifactError):
        rag.evaluate(index, QUESTIONS, tmp_path / "mine", retriever=Reversed(1), reader=False)
    with refusal(MismatchedArtifactError):  # and no index is opened for it
        rag.evaluate(tmp_path / "none", QUESTIONS, tmp_path / "mine", limit=1)
    with rag.Pipeline.open(index, reader=False) as pipeline:
        assert rag.evaluate(pipeline, QUESTIONS).figures["top5"].value == 1.0
        with refusal(ConfigError, "index"):
            rag.evaluate(pipeline, QUESTIONS, retriever="dense")
    with rag.Pipeline.open(index, reader=LastWordsReader()) as pipeline:
        assert "em" in rag.evaluate(pipeline, QUESTIONS).figures
        assert "em" not in rag.evaluate(pipeline, QUESTIONS, reader=False).figures


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """A BEIR folder of documents that are longer than a passage."""
    filler = " ".join(f"word{number}" for number in range(150))
    documents = [
        f'{{"_id": "d{n}", "title": "{t}", "text": "{filler} {text}"}}'
        for n, (t, text) in enumerate(TEXTS.items())
    ]
    lines = [f'{{"_id": "{q.id}", "text": "{q.text}"}}' for q in QUESTIONS]
    judged = [f"q{n}\td{n}\t1" for n in range(len(QUESTIONS))]
    files = {
        "corpus.jsonl": documents,
        "queries.jsonl": lines,
        "qrels/test.tsv": ["query-id\tcorpus-id\tscore", *judged],
    }
    return write_files(tmp_path / "beir", {name: "\n".join(it) for name, it in files.items()})


def test_a_beir_folder_that_was_split_is_judged_by_document(beir: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    run_successfully("index", beir, "-o", index, "--retriever", "bm25")
    result = rag.evaluate(index=index, questions=beir, reader=False)
    assert result.figures["RR"].value == result.figures["nDCG@10"].value == 1.0
    assert (result.figures["RR"].n, result.figures["R@5"].value) == (4, 1.0)
    assert "the gold ids of 4 questions name documents" in str(result)
    assert all(record.hits[0].is_gold for record in result.records())

    mined = tmp_path / "mined.json"
    printed = run_successfully("mine", "-i", index, "-q", beir, "-o", mined, "--source", "bm25")
    assert "positive document 4" in printed
    for number, example in enumerate(read_examples(mined)):
        assert [passage.id for passage in example.positives] == [f"d{number}-1"]
        assert not [c for c in example.negatives if c.passage.id.startswith(f"d{number}-")]


def test_a_question_that_the_corpus_holds_is_not_ranked_where_beir_judges(tmp_path: Path) -> None:
    """As in ArguAna, whose questions are arguments of the corpus; trec_eval itself ranks them."""
    files = {
        "queries.jsonl": '{"_id": "a", "text": "rivers are long"}',
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\na\tb\t1",
        "trec.run": "a Q0 a 1 3.0 x\na Q0 c 2 2.0 x\na Q0 b 3 1.0 x\n",
    }
    folder = write_files(tmp_path, files)
    run = folder / "trec.run"
    assert reciprocal_rank(run, folder) == 1 / 2
    plain = [Question("a", "rivers are long", gold_passage_ids=("b",))]
    assert reciprocal_rank(run, plain) == 1 / 3
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\na\ta\t1")
    assert reciprocal_rank(run, folder) == 1


def test_the_question_itself_takes_no_rank_of_another_passage(tmp_path: Path) -> None:
    """Recall at the last rank that was searched is that of a search without the question."""
    texts = {"a": "rivers are long", "c": "long rivers are rivers", "b": "some rivers are short"}
    passages = [Passage(id, "", text) for id, text in texts.items()]
    index = tmp_path / "index"
    rag.Pipeline.from_texts(passages, out=index, reader=False, retriever="bm25").close()
    files = {
        "queries.jsonl": '{"_id": "a", "text": "rivers are long"}',
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\na\tb\t1",
    }
    folder = write_files(tmp_path, files)
    for ks, at_1 in (((1,), 0.0), ((2,), 1.0)):
        found = rag.evaluate(index, folder, reader=False, ks=ks, read=1)
        assert found.figures["RR"].value == at_1 / 2
        [record] = found.records()
        assert [hit.id for hit in record.hits] == ["c", "b"][: ks[0]]


@pytest.mark.parametrize("third", [["1", "2"], ["0.9", "0.8"], ["7e1", "-2.0"]])
def test_runs_of_three_columns_are_ordered_by_rank_or_score(
    tmp_path: Path, third: list[str]
) -> None:
    """MS MARCO's runs end with a rank, the smallest first; Tevatron's with a score."""
    run = write_files(tmp_path, {"r.tsv": f"1\tb\t{third[0]}\n1\ta\t{third[1]}\n"}) / "r.tsv"
    assert reciprocal_rank(run) == 1 / 2


def test_a_run_over_other_ids_is_told(tmp_path: Path) -> None:
    run = write_files(tmp_path, {"r.run": "1 Q0 D7 1 9.0 x\n"}) / "r.run"
    scored = rag.evaluate(None, JUDGED, run=run)
    assert "do results and questions name passages alike?" in str(scored)


def test_the_path_of_a_file_makes_no_other_evaluation(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q.jsonl").write_text('{"question": "Where does the Rhine end?", "answers": ["Sea"]}\n')
    for path in ("q.jsonl", tmp_path / "q.jsonl"):
        rag.evaluate(index, path, "out", reader=False)
    Path("q.jsonl").write_text('{"question": "Where does the Rhine end?", "answers": ["x"]}\n')
    with pytest.raises(MismatchedArtifactError, match="sha256"):
        rag.evaluate(index, "q.jsonl", "out", reader=False)


def test_a_set_that_cannot_be_judged_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("Question;Gold\nWhere does the Danube rise?;danube\nWho?;\n")
    with refusal(DataError):
        rag.evaluate(tmp_path / "nowhere", path, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_questions_that_could_not_be_read_are_told(
    index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answer(request: ReadRequest) -> AnswerSet:
        failure = "HTTP 500" if "Rhine" in request.question else ""
        return AnswerSet(request.question, (), 1.0, failure=failure)

    monkeypatch.setattr("readers.open.open_reader", lambda *_, **__: MadeReader(answer))
    for _ in range(2):  # once more from the results that are there
        result = rag.evaluate(index=index, questions=QUESTIONS, out=tmp_path / "r")
        assert "1 questions could not be read and count as unanswered: HTTP 500" in str(result)


def test_the_gold_passages_alone_are_read_without_an_index() -> None:
    result = rag.evaluate(questions=QUESTIONS, gold=True)
    answers = [record.prediction for record in result.records()]
    assert answers == ["in the Black Forest", "in the North Sea", "Oslo", "Rome"]
    assert result.figures["em"].value == 0.5
    assert not {"R@5", "AP", "top1", "mrr"} & set(result.figures)  # nothing was searched
    assert set(result.metrics["latency_ms"]) == {"total", "read"}
    assert result.folder.is_dir()
    result.holder.cleanup()  # what happens when the object goes
    assert not result.folder.exists()
    assert rag.evaluate(questions=QUESTIONS, gold=True, reader=LastWordsReader()).metrics["n"] == 4
    with refusal(DataError):
        rag.evaluate(questions=[Question("bare", "why?", ("x",))], gold=True)


def test_a_policy_object_decides_on_all_questions(index: Path, tmp_path: Path) -> None:
    asked = set[str]()

    class Watched(SearchOnce):
        def step(self, state: State) -> Step:
            asked.add(state.question)
            return super().step(state)

    policy = Watched()
    result = rag.evaluate(index, QUESTIONS, tmp_path, policy=policy)
    assert asked == {question.text for question in QUESTIONS}
    assert result.metrics["system"]["policy"] == "Watched"
    with refusal(MismatchedArtifactError, "out"):
        rag.evaluate(index, QUESTIONS, tmp_path, policy=policy)
    with refusal(ConfigError, "policy"):
        rag.evaluate(index, QUESTIONS, reader=False, policy=policy)


def test_what_does_not_fit_is_refused(index: Path, tmp_path: Path) -> None:
    with refusal(ConfigError):
        rag.evaluate(questions=QUESTIONS)
    with refusal(ConfigError):
        rag.evaluate(index=index, questions=QUESTIONS, colour="blue")
    path = tmp_path / "test.jsonl"
    path.touch()
    result = run_command("tune", "confidence", "-q", path, "-o", tmp_path / "out", "-i", index)
    assert result.exit_code == ConfigError.exit_code
    assert "test set" in result.output
