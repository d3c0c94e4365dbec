"""The command line: errors become messages and exit codes, help costs no heavy import."""

import json
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest

from rag.data.examples import read_examples
from tests.commands import exit_code
from tests.support.verifying import WordVerifier


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code, output = exit_code(*arguments), capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.parametrize(
    ("arguments", "exit_code", "named"),
    [
        ("ask Who? --index nowhere", 4, "nowhere: no such directory"),
        ("ask Who? --index nowhere --top-k 3", 4, "nowhere: no such directory"),
        ("ask 'Who?' ' ' --index nowhere", 3, "question 1"),
        ("ask Who? caf\udce9? --index nowhere", 3, "question 1"),
        ("verify 'Ulm is old.' --index nowhere", 4, "nowhere: no such directory"),
        ("verify 'Ulm is old.' ' ' --index nowhere", 3, "claim 1 is empty"),
        ("verify --index nowhere", 2, "give claims, --text or --claims"),
        ("verify 'Ulm is old.' --text none.txt --index nowhere", 2, "one of these alone"),
        ("verify --text none.txt --index nowhere", 3, "none.txt: no such file"),
        ("verify --claims q --index nowhere", 3, "q"),
        ("inspect nowhere", 4, "nowhere"),
        ("index nowhere.jsonl --out x --retriever bm25", 3, "nowhere.jsonl"),
        ("index sample", 2, "give --out, to build an index, or --update"),
        ("index sample --update i --encoder static", 2, "--encoder cannot be given with --update"),
        (
            "index sample --out i --max-tokens 300",
            2,
            "--max-tokens is 300, but the encoder reads 256",
        ),
        ("index sample --out x --watch", 2, "--watch goes with --update"),
        ("ask Who? --index begun", 4, "begun"),
        ("evaluate --index nowhere --questions bare --out o", 3, "no question has answers"),
        ("evaluate --index nowhere --out o", 2, "give --questions, or --dataset"),
        ("mine --index i --questions none.jsonl --out o.json", 3, "none.jsonl"),
        ("train dpr --train none.json --out o", 3, "→ --train names it"),
        ("train dpr --train q --out o --set max_steps=few", 2, "max_steps = 'few'"),
        ("docs nopage", 2, "'nopage'"),
        ("index sample --out x --reuse x", 2, "--reuse and --out are both x"),
        ("index sample --out x --reuse nowhere", 4, "nowhere"),
        ("index sample --out x --retriever bm25 --reuse y", 2, "--reuse"),
        ("retrieve --index x --questions q.jsonl --out o.xml", 2, ".xml"),
        ("train reader --out x --set learning_rat=1", 2, "did you mean 'learning_rate'?"),
        ("train reader --out x --train q --negatives a --negatives b", 2, "--negatives"),
        ("rounds --recipe colbert -i i -q q -o o --signal likelihood", 2, "--signal is not read"),
        ("compare nowhere elsewhere", 3, "nowhere"),
        ("evaluate --index x --questions q --out o --ks 5000", 2, "1000"),
        ("train rag --train q -i i -o x", 2, "--generator is not given\n  → --config gives"),
        ("index sample --out x --index-type plaid --retriever bm25", 2, "plaid"),
        ("train dpr --out x", 2, "error: --train is not given"),
        ("train dpr --train x --out y --config utf16.yaml", 2, "utf16.yaml"),
        ("train reader --config reader-squad --out x", 2, "--train is not given"),
        ("tune confidence --index i --questions q --out q", 2, "q is a file"),
        ("mine --index i --questions q --out begun", 2, "begun is a folder"),
        ("retrieve --index i --questions q --out q/o.run", 2, "q is a file"),
        ("train ict --out x", 2, "error: --corpus is not given"),
        ("train static --out x --train q", 2, "--index is not given"),
        ("train ./none.py:Own --out x", 2, "none.py"),
    ],
)
def test_wrong_input_is_one_message_without_traceback(
    arguments: str,
    exit_code: int,
    named: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q").write_text('{"question": "Who?", "answers": ["A"]}')
    Path("bare").write_text('{"question": "Who?"}')
    Path("begun/building").mkdir(parents=True)
    Path("utf16.yaml").write_text("recipe: dpr", encoding="utf-16")
    Path("i").mkdir()
    Path("i", "manifest.json").write_text('{"format_version": 1, "kind": "index"}')
    code, _, err = _run(capsys, *shlex.split(arguments))
    assert code == exit_code, err
    assert err.startswith("error: ")
    assert named in err
    assert "Traceback" not in err
    assert not [*Path().glob("*.mining"), *Path().glob("o")]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("idnex", 'Did you mean "index"?'),
        ("train dprr --out x", "did you mean 'dpr'?"),
        ("index sample --out x --retriever sparse", '"sparse" for --retriever'),
        ("index sample --out x --index-type sq8", "not flat, hnsw, ivf, plaid"),
        ("evaluate --index x --questions q --out o --seed -1", "seed = -1"),
        ("ask Who --encoder x --index i", "Did you mean --index-encoder?"),
        ("evaluate -q q -i i -o o --read-top-k 5", "--read"),
        ("ask Who", "--index"),
        ("ask --index i", "QUESTIONS"),
        ("mcp --index i --top-k 101", "--top-k"),
        ("evaluate --index x --questions q --out o --ks 1,b", "ks.1 = 'b'"),
        ("index sample --out x --reuse a --reuse=b", "--reuse"),
    ],
)
def test_a_wrong_option_is_named(
    arguments: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = _run(capsys, *arguments.split())
    assert code == 2
    assert err.startswith("error: ")
    assert named in err, err


def test_a_build_that_stored_nothing_goes_on_with_what_the_hint_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, place = tmp_path / "c.jsonl", tmp_path / "i"
    good = [json.dumps({"id": str(n), "text": f"river {n}"}) for n in range(9)]
    corpus.write_text("\n".join([*good, "{"]))
    build = ["index", str(corpus), "--out", str(place), "--retriever", "bm25"]
    assert "raise --max-bad-share" in _run(capsys, *build)[2]
    code, out, err = _run(capsys, *build, "--max-bad-share", "0.2")
    assert (code, out.count("1 bad"), err.count("1 bad"), " kB" in out) == (0, 1, 0, True)
    corpus.write_text("\n".join(good))
    assert "add --overwrite" in _run(capsys, *build)[2]
    main_ok([*build, "--overwrite"])


def test_what_the_file_system_refuses_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    command = ("index", "sample", "--retriever", "bm25", "--out")
    code, _, err = _run(capsys, *command, str(tmp_path / "file"))
    found = f"{tmp_path / 'file'} is a file"
    assert (code, err) == (2, f"error: {found}, expected a folder\n  → choose another --out\n")
    code, _, err = _run(capsys, *command, str(tmp_path / "file" / "index"))
    assert (code, err.splitlines()[0]) == (2, f"error: {found}: nothing can lie in it")

    for error, expected, words in (
        (
            NotADirectoryError(20, "Not a directory", "place"),
            6,
            "error: place: not a directory\n  → check the",
        ),
        (
            ZeroDivisionError("surprise"),
            70,
            "unexpected error: ZeroDivisionError: surprise\n  → add --debug",
        ),
        (MemoryError(), 6, "error: out of memory"),
    ):
        monkeypatch.setattr("rag.docs.pages.page_titles", Mock(side_effect=error))
        code, _, err = _run(capsys, "docs")
        assert (code, err[: len(words)]) == (expected, words)


def test_a_changed_folder_is_named_in_a_few_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, index = tmp_path / "files", tmp_path / "index"
    files.mkdir()
    for number in range(20):
        (files / f"{number}.txt").write_text(f"Text {number}.")
    build = ["index", str(files), "--out", str(index), "--retriever", "bm25"]
    main_ok(build)
    (files / "7.txt").unlink()
    (files / "8.txt").write_text("Other text.")
    code, _, err = _run(capsys, *build)
    assert code == 4
    assert "source.files: others are 7.txt, 8.txt)" in err
    assert f"--update {index} in place of --out" in err
    assert len(err) < 500


def test_bm25_index_from_the_sample_and_a_trec_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    index, run = tmp_path / "index", tmp_path / "out.run"
    questions = tmp_path / "questions.txt"
    questions.write_text(
        "Which pigment was used in The Great Wave off Kanagawa?\n", encoding="utf-8"
    )
    main_ok(["index", "sample", "--out", str(index), "--retriever", "bm25"])
    main_ok(
        ["retrieve", "--index", str(index), "-q", str(questions), "-o", str(run), "--top-k", "3"]
    )
    capsys.readouterr()
    first = run.read_text(encoding="utf-8").split("\n")[0].split()
    assert first[1:4] == ["Q0", "great-wave", "1"]
    patterns = tmp_path / "patterns.jsonl"
    line = {"question": "Which pigment was used in The Great Wave?", "answer": ["Pr.ssian"]}
    patterns.write_text(json.dumps({**line, "answer_is_regex": True}) + "\n")
    result = tmp_path / "found.json"
    main_ok(
        ["retrieve", "--index", str(index), "-q", str(patterns), "-o", str(result), "--top-k", "3"]
    )
    [example] = read_examples(result, needs="questions")
    assert example.answer_profile == "trec_search"
    assert any(context["has_answer"] for context in json.loads(result.read_text())[0]["ctxs"])
    capsys.readouterr()
    main_ok(["inspect", str(index), "--verify", "--json"])
    assert json.loads(capsys.readouterr().out)["kind"] == "index"
    text = tmp_path / "claims.txt"
    text.write_text("The Great Wave off Kanagawa is a print. It is blue. Is it old?\n")
    verify = ["verify", "--text", str(text), "--index", str(index), "--top-k", "1"]
    code, _, err = _run(capsys, *verify, "--verifier", str(tmp_path / "none"))
    assert code == 4
    assert "train one with `rag train verifier`, and give its folder as --verifier" in err
    monkeypatch.setattr("readers.verifying.open.load_verifier", lambda *_: WordVerifier())
    code, out, _ = _run(capsys, *verify)
    assert code == 0
    assert "  supported  (supported " in out
    assert "[[" in out
    assert out.count("  not judged\n") == 2
    main_ok([*verify, "--json"])
    verdicts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [verdict["label"] for verdict in verdicts] == ["supported", "not_judged", "not_judged"]
    assert verdicts[0]["evidence"]["passage_id"] == "great-wave"


def main_ok(arguments: list[str]) -> None:
    """Run a command that must succeed."""
    assert exit_code(*arguments) == 0, arguments
