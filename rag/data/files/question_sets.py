"""Records of the published question sets, in their official shape and that of their copies on a
hub.

A hub stores lists of pairs as columns, nests answers, and renames fields.
"""

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from rag.core.errors import DataError
from rag.core.types import AnswerProfile, GoldPassage, Passage, Question
from rag.data.files.fields import first_of, join_sentences, listed_names, passage_of
from rag.data.files.rows import TableRow
from rag.data.metadata import is_list
from rag.data.records import BadRecord, fault_of_question
from rag.data.text import REGEX_PROFILE

Record = Mapping[str, Any]

# as in most sets, and with capitals in TriviaQA's own files
_ID_FIELDS = ("id", "_id", "qid", "question_id", "query_id", "example_id", "QuestionId")
QUESTION_FIELDS = ("question", "query", "input", "text", "Question")
_ANSWER_FIELDS = ("answers", "answer", "output", "Answer")
_POSITIVES = ("positive", "positives", "pos", "positive_passages")
_NEGATIVES = re.compile(r"negatives?|neg|negative_passages|negative_\d+")
_LISTS = ("answers", "answer", "gold_passage_ids")  # in cells of tables
_UNKNOWN_ANSWER = "<unk>"  # TriviaQA's test questions


def parse_record(record: Any, fallback_id: str = "") -> tuple[Question, dict[str, Any]]:
    """The question of a record of any known set, with its id and answers, and all other fields.

    Raises:
        ValueError: no question, or a field of another shape; the message says which.

    Example:
        >>> question, _ = parse_record({"_id": 7, "question": "Who?", "answer": {"text": "Ann"}})
        >>> question.id, question.answers
        ('7', ('Ann',))
    """
    if isinstance(record, BadRecord):
        raise ValueError(f"{record.reason}: {record.detail}")
    if isinstance(record, TableRow):
        cells = {name.lower(): cell for name, cell in record.items()}
        lists = {name: parse_cell(cells[name]) for name in _LISTS if cells.get(name)}
        record = {name: cell for name, cell in cells.items() if cell or name in _POSITIVES} | lists
    if is_list(record) and len(record) >= 2 and all(isinstance(text, str) for text in record):
        record = {"query": record[0], "positive": record[1], "negatives": record[2:]}
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object, found {type(record).__name__}")
    rest = _of_pairs(record)
    name, text = first_of(rest, QUESTION_FIELDS)
    if name is None:
        expected = ", ".join(QUESTION_FIELDS)
        raise ValueError(f"no question: expected one of {expected}; there are {listed_names(rest)}")
    if fault := fault_of_question(text):
        raise ValueError(f"the question {fault}")
    del rest[name]
    name, id = first_of(rest, _ID_FIELDS)
    if name is not None:
        if isinstance(id, bool) or not isinstance(id, str | int):
            raise ValueError(f"the id is not text or a whole number ({id!r:.60})")
        del rest[name]
    answers: tuple[str, ...] = ()
    for name in _ANSWER_FIELDS:
        if name in rest and not answers:
            answers = () if rest[name] in (None, "") else answers_of(rest[name])
            if name != "output":  # KILT's has the evidence, too
                del rest[name]
    is_regex = rest.pop("answers_are_regex", rest.pop("answer_is_regex", None)) is True
    profile: AnswerProfile = REGEX_PROFILE if is_regex else "squad"
    return Question(
        fallback_id if id is None else str(id), text, answers, answer_profile=profile
    ), rest


def _of_pairs(record: Record) -> dict[str, Any]:
    """A pair or triplet of sentence-transformers or Tevatron in the shape of DPR's files."""
    question = next(
        (n for n in ("anchor", "query", "question") if isinstance(record.get(n), str)), None
    )
    named = [name for name in _POSITIVES if name in record]  # the first that holds something
    positive = next((name for name in named if record[name]), named[0] if named else None)
    if question is None or positive is None:
        return dict(record)
    wrong = [name for name in record if _NEGATIVES.fullmatch(str(name))]
    negatives = [passage for name in wrong for passage in _contexts(record[name])]
    others = {
        name: value for name, value in record.items() if name not in (question, positive, *wrong)
    }
    lists = {"positive_ctxs": _contexts(record[positive]), "hard_negative_ctxs": negatives}
    return {**others, "question": record[question], **lists}


def _contexts(value: Any) -> list[Any]:
    listed = value if is_list(value) else [value]
    return [{"text": item} if isinstance(item, str) else item for item in listed if item]


def parse_cell(cell: str) -> tuple[str, ...]:
    """Read a table's cell: a Python or JSON list of strings, or one string; literals are never
    evaluated.

    Raises:
        ValueError: a list of something else, or answers between bars.

    Example:
        >>> parse_cell("['Paris', \\"L'Isle\\"]"), parse_cell("Paris")
        (('Paris', "L'Isle"), ('Paris',))
    """
    stripped = cell.strip()
    if not re.match(r"\[.*\]$|\(.*\)$", stripped, re.DOTALL):
        if "|" in cell:
            raise ValueError(
                f'several values, and one with a bar, are a list, ["a", "b"]: {cell[:60]!r}'
            )
        return (cell,) if stripped else ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # regular expressions with escapes that Python does not know
            return answers_of(list(ast.literal_eval(stripped)))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise ValueError(f"not a list of answers: {stripped[:60]!r}") from error


def answers_of(value: Any) -> tuple[str, ...]:
    """Text, a number, `{text}` or `{answer}` of these, TriviaQA's object, or a list of any of
    them.
    """
    if is_list(value):
        return tuple(answer for item in value for answer in answers_of(item))
    if isinstance(value, Mapping):
        fields = {str(name).lower(): inner for name, inner in value.items()}
        if "aliases" in fields:
            texts = [
                fields.get("value"),
                *(fields["aliases"] or ()),
                *(fields.get("humananswers") or ()),
            ]
            return tuple(
                it for it in texts if isinstance(it, str) and it not in ("", _UNKNOWN_ANSWER)
            )
        if not {"text", "answer", "provenance"} & fields.keys():  # KILT states evidence alone, too
            raise ValueError("answers are an object without 'text'")
        inner = fields.get("text", fields.get("answer"))
        return answers_of(inner) if inner not in (None, "") else ()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"an answer is not text ({value!r:.60})")
    return (str(value),)


def question_of(record: Any, fallback_id: str) -> Question:
    """The question of a record of any known set, with its evidence; other fields are `meta`.

    Evidence is `gold_passage_ids` (this system), `positive_ctxs` (DPR), `context` as text with
    `title` and places of answers (SQuAD), `context` as pairs with `supporting_facts` (HotpotQA,
    2WikiMultiHopQA) or `gold_titles`, `paragraphs` (MuSiQue) and `output` (KILT).

    Raises:
        ValueError: no question, or a field of another shape; the message says which.

    Example:
        >>> facts = {"supporting_facts": [["B", 0]], "context": [["A", ["no"]], ["B", ["One.", " Two."]]]}
        >>> question_of({"question": "q", **facts}, "q1").gold[0].passage.text
        'One. Two.'
    """
    parsed, rest = parse_record(record, fallback_id)
    answers = tuple(dict.fromkeys(parsed.answers))
    ids = rest.pop("gold_passage_ids", None)
    if not isinstance(ids, list | tuple | None) or not all(
        isinstance(it, str | int) for it in ids or ()
    ):
        raise ValueError("gold_passage_ids is not a list of ids")
    fields: dict[str, Any] = {"gold_passage_ids": tuple(map(str, ids or ()))}
    context = rest.get("context")
    if isinstance(output := rest.pop("output", None), list | Mapping):  # KILT
        rows = (item for item in rows_of_columns(output) if isinstance(item, Mapping))
        sets = (rows_of_columns(item.get("provenance")) for item in rows)
        fields["provenance"] = tuple(tuple(places) for places in sets if places)
    if isinstance(rest.get("positive_ctxs"), list):  # DPR
        gold = _passages(rest.pop("positive_ctxs"))
        ids = tuple(item.passage.id for item in gold if item.passage.id)
        fields["gold_passage_ids"] = fields["gold_passage_ids"] or ids
        others = _passages(rest.get("hard_negative_ctxs"))
        fields |= {"gold": gold, "gold_are_alternatives": True, "context": others}
    elif isinstance(context, str) and rest.get("supporting_facts") is None:  # SQuAD
        fields |= _squad_fields(rest, record.get("answers"))
    elif (
        "paragraphs" in rest and {"question_decomposition", "answer_aliases"} & rest.keys()
    ):  # MuSiQue
        answers = (*answers, *(rest.pop("answer_aliases", None) or ()))
        answers = () if rest.pop("answerable", None) is False else tuple(dict.fromkeys(answers))
        fields["gold"], fields["context"] = _musique(rest)
    elif {"supporting_facts", "gold_titles"} & rest.keys() or (  # HotpotQA, 2WikiMultiHopQA
        is_list(context) and all(is_list(pair) and len(pair) == 2 for pair in context)
    ):
        fields["gold"], fields["context"] = _hops(rest)
    if rest.pop("is_impossible", None) is True:
        answers, fields["is_impossible"] = (), True
    return replace(parsed, answers=answers, meta=rest, **fields)


def _squad_fields(rest: dict[str, Any], stated: Any) -> dict[str, Any]:
    """The paragraph that a question of SQuAD is asked of, and where the stated answers begin in
    it.
    """
    title, context = str(rest.pop("title", None) or ""), rest.pop("context")
    labels = rows_of_columns(stated) if isinstance(stated, list | Mapping) else []
    if isinstance(stated, Mapping):  # a copy on a hub
        title = unquote(title).replace("_", " ")
        if not labels:
            rest["is_impossible"] = True
    fields: dict[str, Any] = {
        "gold": (GoldPassage(Passage("", title, context)),) if context.strip() else ()
    }
    starts = [
        row.get("start", row.get("answer_start")) for row in labels if isinstance(row, Mapping)
    ]
    if all(isinstance(start, int) for start in starts):
        fields["answer_starts"] = tuple(starts)
    return fields


def _passages(listed: Any) -> tuple[GoldPassage, ...]:
    passages = map(passage_of, listed or ())
    return tuple(GoldPassage(p if p.text.strip() else replace(p, text="")) for p in passages)


_Paragraphs = tuple[
    tuple[GoldPassage, ...], tuple[GoldPassage, ...]
]  # gold ones in hop order, the others


def _hops(rest: dict[str, Any]) -> _Paragraphs:
    """Gold paragraphs in the order of the facts, and the others.

    Source: Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense
        Retrieval".
    """
    facts: dict[str, list[int]] = {}
    names = ("title", "sent_id", "sent_idx")
    for title, sentence in pairs_of(rest.pop("supporting_facts", None), names, "supporting_facts"):
        facts.setdefault(str(title), []).append(int(sentence))
    pairs = pairs_of(rest.pop("context", None), ("title", "sentences", "content"), "context")
    unused, gold = [_paragraph(str(title), inside) for title, inside in pairs], list[GoldPassage]()
    named = list(
        map(str, rest.pop("gold_titles", None) or ())
    )  # one title twice: two paragraphs with it
    for title in [*named, *(title for title in facts if title not in named)]:
        paragraph = next((it for it in unused if it.passage.title == title), None)
        if paragraph is not None:
            unused.remove(paragraph)
        quoted = paragraph or GoldPassage(Passage("", title, ""))
        gold.append(replace(quoted, supporting=tuple(facts.get(title, ()))))
    return tuple(gold), tuple(unused)


def _paragraph(title: str, inside: str | Sequence[Any]) -> GoldPassage:
    sentences = () if isinstance(inside, str) else tuple(map(str, inside))
    text = inside if isinstance(inside, str) else join_sentences(sentences)
    return GoldPassage(Passage("", title, text), sentences)


def _musique(rest: dict[str, Any]) -> _Paragraphs:
    """Gold paragraphs in the order of the steps, and the others; each is one "sentence", which
    supports.
    """
    rows = rows_of_columns(rest.pop("paragraphs"))
    if not all(isinstance(item, Mapping) and "paragraph_text" in item for item in rows):
        raise ValueError("paragraphs without 'paragraph_text'")
    paragraphs = [_paragraph(str(item.get("title", "")), [item["paragraph_text"]]) for item in rows]
    steps = rows_of_columns(rest.pop("question_decomposition", None))
    order = [step.get("paragraph_support_idx") for step in steps if isinstance(step, Mapping)]
    numbers = [item.get("idx", place) for place, item in enumerate(rows)]
    gold = [place for place, item in enumerate(rows) if item.get("is_supporting")]
    gold.sort(
        key=lambda place: order.index(numbers[place]) if numbers[place] in order else len(order)
    )
    others = (item for place, item in enumerate(paragraphs) if place not in gold)
    return tuple(replace(paragraphs[place], supporting=(0,)) for place in gold), tuple(others)


def rows_of_columns(value: Any) -> list[Any]:
    """A list as it is; a mapping of equally long lists as a list of mappings; [] for None."""
    if isinstance(value, Mapping):
        columns = list(value.values())
        if not all(is_list(column) and len(column) == len(columns[0]) for column in columns):
            raise ValueError("columns of different length, or not lists")
        return [dict(zip(value, cells, strict=True)) for cells in zip(*columns, strict=True)]
    if value is not None and not is_list(value):
        raise ValueError(f"expected a list, found {type(value).__name__}")
    return list(value or ())


def pairs_of(value: Any, names: Sequence[str], field: str) -> list[tuple[Any, Any]]:
    """Pairs from two columns, a list of two-field mappings, or a list of pairs."""
    pairs = []
    for row in rows_of_columns(value):
        cells = [row[name] for name in names if name in row] if isinstance(row, Mapping) else row
        if not is_list(cells) or len(cells) != 2:
            raise ValueError(f"{field} holds something else than pairs ({row!r:.60})")
        pairs.append((cells[0], cells[1]))
    return pairs


def table_columns(row: list[str], path: str) -> list[str] | None:
    """The columns of a table of questions or training pairs by its first row, if that does not name
    them.

    They are DPR's question and answers, id and question, pairs or triplets of texts, or the ids of
    a question, a right and a wrong passage (MS MARCO's `qidpidtriples`); others are a DataError.
    """
    cells = [cell.strip() for cell in row]
    if {"question", "query", "anchor"}.intersection(map(str.lower, cells)):
        return None
    if len(row) in (2, 3) and cells[-1][:1] + cells[-1][-1:] in ("[]", "()"):
        return ["id", "question", "answers"][-len(row) :]
    if len(row) in (2, 3) and all(" " in cell for cell in cells):
        return ["anchor", "positive", "negative"][: len(row)]
    if len(row) == 3 and all(map(str.isdecimal, cells)):
        return ["question_id", "positive_id", "negative_id"]
    if len(row) == 2 and " " not in cells[0] and not all(map(str.isidentifier, cells)):
        return ["id", "question"]
    raise DataError(
        f"{path}:1: no column 'question' among {', '.join(row)}",
        hint="begin the table with a line that calls the column of the questions 'question', that of the "
        "answers 'answers' and that of ids 'id'; without it: question and ['answer', …], or id and question",
    )


def squad_paragraphs(record: Any) -> list[dict[str, Any]] | None:
    """The paragraphs of an article of SQuAD, with the ids that they have in a corpus; None if it is
    none.

    Returns:
        `id` (the article's title and a number), `title`, `context` (None if it has none), and
        `qas`.
    """
    paragraphs = record.get("paragraphs") if isinstance(record, Mapping) else None
    if not isinstance(paragraphs, list) or not all(
        isinstance(item, Mapping) and ("qas" in item or "context" in item) for item in paragraphs
    ):
        return None
    title = str(record.get("title", ""))
    rows = []
    for number, item in enumerate(paragraphs):
        names = {"id": f"{title}-{number}", "title": unquote(title).replace("_", " ")}
        rows.append({**names, "context": item.get("context"), "qas": item.get("qas") or ()})
    return rows
