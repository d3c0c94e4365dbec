"""Claim sets in their published forms, what is refused in them, and which texts are claims."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rag.core.errors import DataError
from rag.core.types import GoldSentence
from rag.data.claims import fever_title, plain_title, read_claims, sentences_of_file, why_not_judged
from rag.data.files.rows import write_json_lines
from tests.support.messages import refusal

FEVER = {"id": 7, "verifiable": "VERIFIABLE", "label": "SUPPORTS", "claim": "Ulm lies in Germany."}
NAMED = [[1, 2, "Ulm_-LRB-city-RRB-", 3], [1, 4, "Germany", 0]]


def written(folder: Path, *records: Any) -> Path:
    file = folder / "claims.jsonl"
    write_json_lines(file, records)
    return file


@pytest.mark.parametrize(
    ("record", "label", "evidence", "gold_sets"),
    [
        (
            {**FEVER, "evidence": [NAMED, [[5, 6, "Danube", 1]]]},
            "supported",
            (),
            (
                (GoldSentence("Ulm (city)", 3), GoldSentence("Germany", 0)),
                (GoldSentence("Danube", 1),),
            ),
        ),
        (
            {**FEVER, "label": "NOT ENOUGH INFO", "evidence": [[[1, None, None, None]]]},
            "not_enough",
            (),
            (),
        ),
        (
            {
                "uid": "h1",
                "claim": "A is in B.",
                "supporting_facts": [["A", 0], ["B", 2]],
                "label": "NOT_SUPPORTED",
                "num_hops": 2,
            },
            "not_supported",
            (),
            ((GoldSentence("A", 0), GoldSentence("B", 2)),),
        ),
        (
            {
                "id": 263,
                "claim": "Proteins disrupt it.",
                "evidence": {
                    "11": [{"sentences": [7, 9], "label": "CONTRADICT"}],
                    "30": [{"sentences": [0], "label": "CONTRADICT"}],
                },
                "cited_doc_ids": [11, 30, 14],
            },
            "refuted",
            (),
            ((GoldSentence("11", 7), GoldSentence("11", 9)), (GoldSentence("30", 0),)),
        ),
        ({"id": 1, "claim": "It is so.", "evidence": {}}, "not_enough", (), ()),
        (
            {
                "id": "x",
                "text": "Gandhi was filmed in India.",
                "label": "SUPPORTS",
                "wikipedia_page": "Gandhi (film)",
                "gold_evidence": [{"section_header": "Production", "text": "It was shot there."}],
                "retrieved_evidence": [],
            },
            "supported",
            ("It was shot there.",),
            ((GoldSentence("Gandhi (film)", text="It was shot there."),),),
        ),
        (
            {
                "id": "f",
                "set": "fever",
                "claim": "A.",
                "label": "refuted",
                "evidence": ["B.", "C."],
            },
            "refuted",
            ("B.", "C."),
            ((GoldSentence(text="B."), GoldSentence(text="C.")),),
        ),
        ({"claim": "Nothing is known."}, None, (), ()),
    ],
)
def test_published_sets_are_read(
    tmp_path: Path, record: dict[str, Any], label: str, evidence: Any, gold_sets: Any
) -> None:
    [claim] = read_claims(written(tmp_path, record))
    assert (claim.label, claim.evidence, claim.gold_sets) == (label, evidence, gold_sets)
    assert claim.id == str(record.get("id", record.get("uid", "c1")))


BAD_RECORDS = {
    "unknown label": {**FEVER, "label": "MAYBE", "evidence": []},
    "evidence without an article": {**FEVER, "evidence": [[[1, 2, None, 3]]]},
    "evidence without a sentence": {**FEVER, "evidence": [[[1, 2, "Ulm", None]]]},
    "negative sentence": {**FEVER, "evidence": [[[1, 2, "Ulm", -1]]]},
    "evidence of two": {**FEVER, "evidence": [[["Ulm", 3]]]},
    "evidence that is a number": {**FEVER, "evidence": [3]},
    "evidence that is text": {**FEVER, "evidence": "Ulm"},
    "fact without a sentence": {"uid": 1, "claim": "A.", "supporting_facts": [["A"]]},
    "evidence without a label": {"id": 1, "claim": "A.", "evidence": {"1": [{"sentences": [0]}]}},
    "two labels": {
        "id": 1,
        "claim": "A.",
        "evidence": {
            "1": [{"sentences": [0], "label": "SUPPORT"}],
            "2": [{"sentences": [0], "label": "CONTRADICT"}],
        },
    },
    "evidence without a page": {"id": 1, "text": "A.", "gold_evidence": [{"text": "B."}]},
    "empty claim": {"id": 1, "claim": " ", "evidence": []},
    "no claim": {"id": 1, "text": "A."},
    "claim that is a number": {"id": 1, "claim": 3},
    "list": [1],
    "id used before": {**FEVER, "claim": "B.", "evidence": []},
}


@pytest.mark.parametrize("record", BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_bad_records_are_named_with_their_line(tmp_path: Path, record: object) -> None:
    file = written(tmp_path, {**FEVER, "evidence": [NAMED]}, record)
    with refusal(DataError):
        list(read_claims(file))


def test_files_of_other_forms(tmp_path: Path) -> None:
    listed = tmp_path / "hover.json.gz"
    fact = {"uid": "a", "claim": "A.", "supporting_facts": [["A", 0]], "label": "SUPPORTED"}
    listed.write_bytes(gzip.compress(json.dumps([fact]).encode()))
    assert [claim.id for claim in read_claims(listed)] == ["a"]
    empty = written(tmp_path)
    text = tmp_path / "text.txt"
    text.write_bytes("Ulm is old. \xc3".encode("latin-1"))
    for file in (empty, tmp_path / "none"):
        with refusal(DataError):
            list(read_claims(file))
    for file in (text, empty):
        with refusal(DataError):
            sentences_of_file(file)
    text.write_text("Ulm is old. Is it big?\nIt is.", encoding="utf-8-sig")
    assert sentences_of_file(text) == ["Ulm is old.", "Is it big?", "It is."]


def test_titles_of_fever_are_written_as_they_were() -> None:
    title = "Beauty_and_the_Beast_-LRB-2017_film-RRB-_-COLON-_a_-LSB-b-RSB-"
    assert plain_title(title) == "Beauty and the Beast (2017 film) : a [b]"
    assert fever_title(plain_title(title)) == title


@pytest.mark.parametrize(
    ("text", "is_question", "hangs"),
    [
        ("Ulm lies on the Danube.", False, False),
        ("Where does the Danube rise?", True, False),
        ("In which year did Goethe die?", True, False),
        ("How many people live in Ulm", True, False),
        ("The town is where?", True, False),
        ("多瑙河在哪里？", True, False),
        ("She plays a part in Why Him?", False, True),
        ("What goes up must come down.", False, False),
        ("However, it is long.", False, True),
        ("Then they left for Ulm.", False, True),
        ("Its river is the Danube.", False, True),
        ("But Ulm is big.", False, False),
        ("It Happened One Night is a film.", False, False),
        ("There are ten of them.", False, False),
    ],
)
def test_questions_and_what_hangs_on_a_sentence_before(
    text: str, is_question: bool, hangs: bool
) -> None:
    assert bool(why_not_judged(text)) == is_question
    assert bool(why_not_judged(text, in_text=True)) == (is_question or hangs)
