"""The command line: errors become messages and exit codes, help costs no heavy import."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

import rag
from rag.core.errors import RagError
from rag.core.files import read_json
from rag.data.examples import read_examples
from rag.data.files.rows import write_json_lines
from tests.commands import run_command, run_successfully
from tests.support.processes import run_python, with_packages
from tests.support.verifying import WordVerifier


def test_letters_that_an_encoding_lacks_are_escaped() -> None:
    program = "from rag.__main__ import main; main(['docs', 'asking'])"
    told = run_python(program, env={**with_packages(), "PYTHONIOENCODING": "ascii"})
    assert "\\u2026" in told


@pytest.mark.parametrize(
    ("arguments", "exit_code", "named"),
    [
        ("ask Who? --index nowhere", 4, "nowhere: no such directory"),
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
        ("index sample --update i --k1 0 --no-normalize", 2, "--normalize, --k1 cannot be given"),
        (
            "index sample --out i --max-tokens 300",
            2,
            "--max-tokens is 300, but the encoder reads 256",
        ),
        ("index sample --out x --watch", 2, "--watch goes with --update"),
        ("index sample --retriever bm25 --out q", 2, "expected a folder\n  → choose another --out"),
        ("index sample --retriever bm25 --out q/i", 2, "q is a file: nothing can lie in it"),
        ("ask Who? --index begun", 4, "begun"),
        ("evaluate --index nowhere --questions bare --out o", 3, "no question has answers"),
        ("evaluate --index nowhere --out o", 2, "give --questions, or --dataset"),
        ("mine --index i --questions none.jsonl --out o.json", 3, "none.jsonl"),
        ("train dpr --train none.json --out o", 3, "→ --train names it"),
        ("index sample --out x --reuse x", 2, "--reuse and --out are both x"),
        ("index sample --out x --reuse nowhere", 4, "nowhere"),
        ("index sample --out x --retriever bm25 --reuse y", 2, "--reuse"),
        ("retrieve --index x --questions q.jsonl --out o.xml", 2, ".xml"),
        ("train reader --out x --set learning_rat=1", 2, "did you mean 'learning_rate'?"),
        ("train reader --out x --train q --negatives a --negatives b", 2, "--negatives"),
        ("rounds --recipe colbert -i i -q q -o o --signal likelihood", 2, "--signal is not read"),
        ("compare q bare", 3, "q: no such folder"),
        ("train dpr --train texts --out x", 3, "texts is a folder, expected a file of examples"),
        ("evaluate --index x --questions q --out o --ks 5000", 2, "1000"),
        ("train rag --train q -i i -o x", 2, "--generator is not given\n  → --config gives"),
        ("index sample --out x --index-type plaid --retriever bm25", 2, "plaid"),
        ("train dpr --out x", 2, "error: --train is not given"),
        ("train dpr --train x --out y --config utf16.yaml", 2, "utf16.yaml"),
        ("tune confidence --index i --questions q --out q", 2, "q is a file"),
        ("mine --index i --questions q --out begun", 2, "begun is a folder"),
        ("retrieve --index i --questions q --out q/o.run", 2, "q is a file"),
        ("train ict --out x", 2, "error: --corpus is not given"),
        ("train static --out x --train q", 2, "--index is not given"),
        ("train ./none.py:Own --out x", 2, "none.py"),
    ],
)
def test_wrong_input_is_one_message_without_traceback(
    arguments: str, exit_code: int, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q").write_text('{"question": "Who?", "answers": ["A"]}')
    Path("bare").write_text('{"question": "Who?"}')
    Path("begun/building").mkdir(parents=True)
    Path("texts").mkdir()
    Path("texts/a.txt").write_text("A.")
    Path("utf16.yaml").write_text("recipe: dpr", encoding="utf-16")
    Path("i").mkdir()
    Path("i", "manifest.json").write_text('{"format_version": 1, "kind": "index"}')
    ran = run_command(*shlex.split(arguments))
    assert ran.exit_code == exit_code, ran.err
    assert ran.err.startswith("error: ")
    assert named in ran.err
    assert "Traceback" not in ran.err
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
        ("retrieve Who --index x", "see `rag retrieve --help`"),
        ("ask --index i", "QUESTIONS"),
        ("mcp --index i --top-k 101", "--top-k"),
        ("evaluate --index x --questions q --out o --ks 1,b", "ks.1 = 'b'"),
        ("index sample --out x --reuse a --reuse=b", "--reuse"),
    ],
)
def test_a_wrong_option_is_named(arguments: str, named: str) -> None:
    ran = run_command(*arguments.split())
    assert ran.exit_code == 2
    assert ran.err.startswith("error: ")
    assert named in ran.err, ran.err


def test_a_build_that_stored_nothing_goes_on_with_what_the_hint_says(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    good = [json.dumps({"id": str(n), "text": f"river {n}"}) for n in range(9)]
    corpus.write_text("\n".join([*good, "{"]))
    build = ["index", corpus, "--out", tmp_path / "i", "--retriever", "bm25"]
    assert "raise --max-bad-share" in run_command(*build).err
    code, out, err = run_command(*build, "--max-bad-share", 0.2)
    assert (code, out.count("1 bad"), err.count("1 bad"), " kB" in out) == (0, 1, 0, True)
    corpus.write_text("\n".join(good))
    assert "add --overwrite" in run_command(*build).err
    run_successfully(*build, "--overwrite")


@pytest.mark.parametrize(
    ("words", "call", "named"),
    [
        (
            "index c --out i --retriever bm25 --k1 2",
            lambda: rag.index("c", "i", retriever="bm25", k1=2),
            "choose another {out}, or add {overwrite}",
        ),
        (
            "index c --out x --retriever bm25 --metadata year",
            lambda: rag.index("c", "x", retriever="bm25", metadata=["year"]),
            "name a field of the records as {metadata}",
        ),
        (
            "index bad --out x --retriever bm25",
            lambda: rag.index("bad", "x", retriever="bm25"),
            "raise {max_bad_share} to continue",
        ),
        (
            "index names.csv --out x --retriever bm25",
            lambda: rag.index("names.csv", "x", retriever="bm25"),
            "give its name as {text_field}; a table",
        ),
        (
            "retrieve -i i -q q -o o.run --filter year=1",
            lambda: rag.retrieve("i", "q", "o.run", filter={"year": 1}),
            "{filter} names the field 'year', which",
        ),
    ],
)
def test_each_front_end_spells_an_argument_as_its_users_do(
    words: str,
    call: Callable[[], object],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    good = {"id": "1", "text": "The Rhine ends in the North Sea."}
    write_json_lines(Path("c"), [good])
    write_json_lines(Path("bad"), [good, {"id": "2"}])
    Path("names.csv").write_text("id,remark\n1,none\n")
    Path("q").write_text("Where?\n")
    rag.index("c", "i", retriever="bm25")
    with pytest.raises(RagError) as caught:
        call()
    error = caught.value
    names = error.arguments
    assert named.format_map({name: f"{name}=" for name in names}) in str(error)
    options = {name: f"--{name.replace('_', '-')}" for name in names}
    assert named.format_map(options) in run_command(*words.split()).err
    over_http = "\n".join(error.spelled('"{}"'.format))
    assert named.format_map({name: f'"{name}"' for name in names}) in over_http


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
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
        (OSError(28, "No space left on device"), 6, "error: no space left on device\n  → "),
        (MemoryError(), 6, "error: out of memory"),
    ],
)
def test_an_error_of_the_system_is_named(
    error: BaseException, exit_code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rag.docs.pages.page_titles", Mock(side_effect=error))
    ran = run_command("docs")
    assert (ran.exit_code, ran.err[: len(words)]) == (exit_code, words)


def test_ctrl_c_ends_with_a_line_also_while_a_command_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rag.cli.main.import_module", Mock(side_effect=KeyboardInterrupt))
    assert run_command("train", "dpr") == (130, "", "stopped; the same command continues\n")
    assert run_command("ask", "Who?") == (130, "", "")


def test_a_changed_folder_is_named_in_a_few_words(tmp_path: Path) -> None:
    files = tmp_path / "files"
    index = tmp_path / "index"
    files.mkdir()
    for number in range(20):
        (files / f"{number}.txt").write_text(f"Text {number}.")
    build = ["index", files, "--out", index, "--retriever", "bm25"]
    run_successfully(*build)
    (files / "7.txt").unlink()
    (files / "8.txt").write_text("Other text.")
    ran = run_command(*build)
    assert ran.exit_code == 4
    assert "source.files: others are 7.txt, 8.txt)" in ran.err
    assert f"`rag index … --update {index}` brings" in ran.err
    assert len(ran.err) < 500


@pytest.fixture(scope="module")
def sample_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, to be searched by BM25."""
    index = tmp_path_factory.mktemp("sample") / "index"
    run_successfully("index", "sample", "--out", index, "--retriever", "bm25")
    return index


def test_results_are_written_as_a_trec_run_and_as_examples(
    sample_index: Path, tmp_path: Path
) -> None:
    questions = tmp_path / "questions.txt"
    questions.write_text("Which pigment was used in The Great Wave off Kanagawa?\n")
    retrieve = ("retrieve", "--index", sample_index, "--top-k", 3)
    run = tmp_path / "out.run"
    run_successfully(*retrieve, "-q", questions, "-o", run)
    first = run.read_text(encoding="utf-8").split("\n")[0].split()
    assert first[1:4] == ["Q0", "great-wave", "1"]
    patterns = tmp_path / "patterns.jsonl"
    line = {"question": "Which pigment was used in The Great Wave?", "answer": ["Pr.ssian"]}
    write_json_lines(patterns, [{**line, "answer_is_regex": True}])
    result = tmp_path / "found.json"
    run_successfully(*retrieve, "-q", patterns, "-o", result)
    [example] = read_examples(result, needs="questions")
    assert example.answer_profile == "trec_search"
    assert any(context["has_answer"] for context in read_json(result)[0]["ctxs"])


def test_an_index_is_inspected_as_json(sample_index: Path) -> None:
    shown = run_command("inspect", sample_index, "--verify", "--json")
    assert json.loads(shown.out)["kind"] == "index"


def test_sentences_of_a_text_are_verified(
    sample_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "claims.txt"
    text.write_text("The Great Wave off Kanagawa is a print. It is blue. Is it old?\n")
    verify = ["verify", "--text", text, "--index", sample_index, "--top-k", 1]
    refused = run_command("verify", "--claims", text, "--index", sample_index)
    assert refused.exit_code == 2
    assert "judge the sentences of a text with --text" in refused.err
    refused = run_command(*verify, "--verifier", tmp_path / "none")
    assert refused.exit_code == 4
    hint = "train one with `rag train verifier`, and give its folder as --verifier"
    assert hint in refused.err
    monkeypatch.setattr("readers.verifying.open.load_verifier", lambda *_: WordVerifier())
    shown = run_successfully(*verify)
    assert "  supported  (supported " in shown
    assert "[[" in shown
    assert shown.count("  not judged\n") == 2
    lines = run_command(*verify, "--json").out.splitlines()
    verdicts = list(map(json.loads, lines))
    assert [verdict["label"] for verdict in verdicts] == ["supported", "not_judged", "not_judged"]
    assert verdicts[0]["evidence"]["passage_id"] == "great-wave"
