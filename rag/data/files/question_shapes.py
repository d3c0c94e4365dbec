"""Bring the usual question sets, as official files or as copies on data-set hubs, to one shape per set.

A hub stores lists of pairs as columns, nests answers, and renames fields. The result has the shape of the
set's official file (HotpotQA's pairs, SQuAD's titles), so that later code has one shape per set to read.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rag.data.files.fields import is_list
from rag.data.files.squad import squad_title
from rag.data.files.streams import parse_json

Record = Mapping[str, Any]
_UNKNOWN_ANSWER = "<unk>"  # TriviaQA's test questions
_NO_ANSWER = "No Answer Present."  # MS MARCO's
_DESCRIPTION = re.compile(r'\(description (?:"((?:[^"\\]|\\.)*)"|([^()"]+))\)')  # an answer of WebQuestions


def official_shape(record: Record) -> Record:
    """Bring a record of a known set to its official shape; others come back as they are.

    | set | what is changed |
    |---|---|
    | HotpotQA, 2WikiMultiHopQA | `context` and `supporting_facts` as columns or JSON text → lists of pairs |
    | MuSiQue | `paragraphs` → `context`, `gold_titles` and their places, in the order of the decomposition |
    | MuSiQue | `answer_aliases` join the answers |
    | SQuAD, one record per question | title as text, `answer_starts` |
    | TriviaQA | value, aliases and human answers → answers; capitalised field names of the official files |
    | KILT | `output` and `provenance` as columns → lists; outputs without an answer are left out |
    | WebQuestions | `utterance` → question, the descriptions in `targetValue` → answers |
    | MS MARCO 2.1 | `passages` → `positive_ctxs`, `hard_negative_ctxs`; "No Answer Present." is no answer |
    | PopQA, FlashRAG's files | `possible_answers`, `golden_answers` → answers |

    Raises:
        ValueError: a set's field holds something else than it does in that set.

    Example:
        >>> row = {"question": "q", "answer": "a", "supporting_facts": {"title": ["T"], "sent_id": [2]}}
        >>> official_shape(row)["supporting_facts"]
        [['T', 2]]
    """
    for shape in _SHAPES:
        record = shape(record)
    return record


def rows_of_columns(value: Any) -> list[Any]:
    """A list as it is; a mapping of equally long lists as a list of mappings; [] for None.

    Example:
        >>> rows_of_columns({"a": [1, 2], "b": [3, 4]})
        [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}]

    Raises:
        ValueError: neither.
    """
    if value is None:
        return []
    if isinstance(value, Mapping):
        columns = list(value.values())
        if not all(is_list(column) and len(column) == len(columns[0]) for column in columns):
            raise ValueError("columns of different length, or not lists")
        return [dict(zip(value, cells, strict=True)) for cells in zip(*columns, strict=True)]
    if is_list(value):
        return list(value)
    raise ValueError(f"expected a list, found {type(value).__name__}")


def _parsed(value: Any) -> Any:
    """Lists that a table keeps as JSON text."""
    return parse_json(value) if isinstance(value, str) and value.lstrip().startswith(("[", "{")) else value


def _multi_hop(record: Record) -> Record:
    if record.get("supporting_facts") is None:
        return record
    facts = _pairs(record["supporting_facts"], ("title", "sent_id", "sent_idx"), "supporting_facts")
    changed: dict[str, Any] = {"supporting_facts": [[str(title), int(number)] for title, number in facts]}
    context = _parsed(record.get("context"))
    if context is not None and not isinstance(context, str):
        pairs = _pairs(context, ("title", "sentences", "content"), "context")
        changed["context"] = [[str(title), sentences] for title, sentences in pairs]
    return {**record, **changed}


def _pairs(value: Any, names: Sequence[str], field: str) -> list[tuple[Any, Any]]:
    """Two columns, a list of two-field mappings, or a list of pairs → pairs."""
    rows = rows_of_columns(_parsed(value))
    pairs = []
    for row in rows:
        cells = [row[name] for name in names if name in row] if isinstance(row, Mapping) else row
        if not is_list(cells) or len(cells) != 2:
            raise ValueError(f"{field} holds something else than pairs ({row!r:.60})")
        pairs.append((cells[0], cells[1]))
    return pairs


def _musique(record: Record) -> Record:
    if "paragraphs" not in record or not {"question_decomposition", "answer_aliases"} & record.keys():
        return record
    paragraphs = rows_of_columns(record["paragraphs"])
    if not all(isinstance(item, Mapping) and "paragraph_text" in item for item in paragraphs):
        raise ValueError("paragraphs without 'paragraph_text'")
    places = [number for number, item in enumerate(paragraphs) if item.get("is_supporting")]
    steps = rows_of_columns(record.get("question_decomposition"))
    order = [step.get("paragraph_support_idx") for step in steps if isinstance(step, Mapping)]
    numbers = [item.get("idx", number) for number, item in enumerate(paragraphs)]
    places.sort(key=lambda place: order.index(numbers[place]) if numbers[place] in order else len(order))
    answers = [record.get("answer"), *(record.get("answer_aliases") or ())]
    changed: dict[str, Any] = {
        "context": [[str(item.get("title", "")), [item["paragraph_text"]]] for item in paragraphs],
        "gold_titles": list(dict.fromkeys(str(paragraphs[place].get("title", "")) for place in places)),
        "gold_paragraphs": places,
        "answers": [] if record.get("answerable") is False else [text for text in answers if text],
    }
    left = {"paragraphs", "answer", "answer_aliases"}
    return {**{key: value for key, value in record.items() if key not in left}, **changed}


def _flat_squad(record: Record) -> Record:
    answers = record.get("answers")
    if not (isinstance(record.get("context"), str) and isinstance(answers, Mapping) and "text" in answers):
        return record
    changed: dict[str, Any] = {"answer_starts": list(answers.get("answer_start") or ())}
    if isinstance(record.get("title"), str):
        changed["title"] = squad_title(record["title"])
    if not answers["text"]:
        changed["is_impossible"] = True
    return {**record, **changed}


def _trivia(record: Record) -> Record:
    if "Question" in record and "QuestionId" in record:
        names = {"Question": "question", "QuestionId": "question_id", "Answer": "answer"}
        record = {names.get(key, key): value for key, value in record.items()}
    given = record.get("answer")
    if not (isinstance(given, Mapping) and {"aliases", "Aliases"} & given.keys()):
        return record
    answer = {str(key).lower(): value for key, value in given.items()}
    texts = [answer.get("value"), *(answer.get("aliases") or ()), *(answer.get("humananswers") or ())]
    known = [text for text in texts if isinstance(text, str) and text and text != _UNKNOWN_ANSWER]
    return {**record, "answer": known, "answer_type": answer.get("type")}


def _kilt(record: Record) -> Record:
    if not {"input", "output"} <= record.keys():
        return record
    outputs = []
    for output in rows_of_columns(record["output"]):
        if not isinstance(output, Mapping):
            return record
        kept = {key: value for key, value in output.items() if key != "answer" or value}
        outputs.append({**kept, "provenance": rows_of_columns(output.get("provenance"))})
    return {**record, "output": outputs}


def _ms_marco(record: Record) -> Record:
    given = record.get("passages")
    rows = rows_of_columns(given) if isinstance(given, Mapping | list) else []
    needed = {"is_selected", "passage_text"}
    if not rows or not all(isinstance(row, Mapping) and needed <= row.keys() for row in rows):
        return record
    passages = [{**row, "text": row["passage_text"]} for row in rows]
    changed: dict[str, Any] = {
        "positive_ctxs": [row for row in passages if row["is_selected"]],
        "hard_negative_ctxs": [row for row in passages if not row["is_selected"]],
    }
    if record.get("answers") == [_NO_ANSWER]:
        changed["is_impossible"] = True
    return {**{key: value for key, value in record.items() if key != "passages"}, **changed}


def _popqa(record: Record) -> Record:
    given = record.get("possible_answers")
    return {**record, "possible_answers": _parsed(given)} if isinstance(given, str) else record


def _web_questions(record: Record) -> Record:
    listed = record.get("targetValue")
    if not (isinstance(listed, str) and "utterance" in record):
        return record
    descriptions = _DESCRIPTION.findall(listed)
    answers = [re.sub(r"\\(.)", r"\1", quoted) or plain for quoted, plain in descriptions]
    rest = {key: value for key, value in record.items() if key not in ("targetValue", "utterance")}
    return {**rest, "question": record["utterance"], "answers": answers}


_SHAPES = (_multi_hop, _musique, _flat_squad, _trivia, _kilt, _ms_marco, _popqa, _web_questions)
