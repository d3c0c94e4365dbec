"""Records of question sets and training files: one function per published set brings it to one shape.

A hub stores lists of pairs as columns, nests answers, and renames fields. The shape is that of DPR's files
(`question`, `answers`, `positive_ctxs`, `hard_negative_ctxs`) and, for several hops, HotpotQA's pairs.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from rag.core.errors import DataError
from rag.core.unicode import is_unicode
from rag.data.files.fields import QUESTION_ID_FIELDS, first_of, is_list, listed_names
from rag.data.records import BadRecord

Record = Mapping[str, Any]

QUESTION_FIELDS = ("question", "query", "input", "text")
_ANSWER_FIELDS = ("answers", "answer", "golden_answers", "possible_answers", "output", "short_answers")
_UNKNOWN_ANSWER = "<unk>"  # TriviaQA's test questions
_POSITIVES = ("positive", "positives", "pos", "positive_passages")
_NEGATIVES = re.compile(r"negatives?|neg|negative_passages|negative_\d+")


class QuestionRecord(NamedTuple):
    """What every record has of a question.

    Attributes:
        id: "" if it has none.
        rest: all other fields, in the shape of `normal_record`.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    rest: dict[str, Any]


def parse_record(record: Any) -> QuestionRecord:
    """Question, answers and id of a record of any known set.

    Raises:
        ValueError: no question, or a field of another shape; the message says which.

    Example:
        >>> parse_record({"_id": 7, "question": "Who?", "answer": {"value": "Ann", "aliases": ["A."]}})[:3]
        ('7', 'Who?', ('Ann', 'A.'))
    """
    if isinstance(record, BadRecord):
        raise ValueError(f"{record.reason}: {record.detail}")
    rest = dict(normal_record(record))
    name, text = first_of(rest, QUESTION_FIELDS)
    if name is None:
        expected = ", ".join(QUESTION_FIELDS)
        raise ValueError(f"no question: expected one of {expected}; there are {listed_names(rest)}")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the question is not text, or is empty ({text!r:.60})")
    if "\x00" in text or not is_unicode(text):
        raise ValueError(
            "NUL character in the question" if "\x00" in text else "the question is not valid Unicode"
        )
    del rest[name]
    name, identifier = first_of(rest, QUESTION_ID_FIELDS)
    if name is not None:
        if isinstance(identifier, bool) or not isinstance(identifier, str | int):
            raise ValueError(f"the id is not text or a whole number ({identifier!r:.60})")
        del rest[name]
    answers: tuple[str, ...] = ()
    for name in _ANSWER_FIELDS:
        if name in rest and not answers:
            answers = answers_of(rest[name])
            if name != "output":  # KILT's has the evidence, too
                del rest[name]
    return QuestionRecord("" if identifier is None else str(identifier), text, answers, rest)


def table_columns(row: list[str], path: str) -> tuple[list[str], bool]:
    """The columns of a table of questions or of training pairs by its first row, and whether it names them.

    Without names they are DPR's question and answers, id and question, pairs or triplets of texts, or the
    ids of a question, a right and a wrong passage (MS MARCO's `qidpidtriples`).

    Raises:
        DataError: the columns are others.
    """
    names = [cell.strip().lower() for cell in row]
    if {"question", "query", "anchor"} & {*names}:
        return names, True
    ends_in_list = row[-1].lstrip().startswith(("[", "("))
    are_texts = all(" " in name for name in names) and not ends_in_list
    if len(row) == 2 and (ends_in_list or not all(name.isidentifier() for name in names)):
        pair = ["anchor", "positive"] if are_texts else ["id", "question"]
        return ["question", "answers"] if ends_in_list else pair, False
    if len(row) == 3 and (ends_in_list or are_texts or all(map(str.isdecimal, names))):
        ids = ["question_id", "positive_id", "negative_id"]
        three = ["anchor", "positive", "negative"] if are_texts else ids
        return ["id", "question", "answers"] if ends_in_list else three, False
    raise DataError(
        f"{path}:1: no column 'question' among {', '.join(row)}",
        hint="begin the table with a line that calls the column of the questions 'question', that of the "
        "answers 'answers', that of ids 'id', and for training 'positive' and 'negative'; without it: "
        "question and ['answer', …], or id and question",
    )


def answers_of(value: Any) -> tuple[str, ...]:
    """Text, a number, a list of these, or of `{text}` or `{answer}`, or `{text: [...]}`.

    Raises:
        ValueError: something else.
    """
    if value is None or value == "":
        return ()
    if isinstance(value, Mapping):
        inner = value.get("text", value.get("answer"))
        if inner is None:
            raise ValueError("answers are an object without 'text'")
        return answers_of(list(filter(None, inner)) if is_list(inner) else inner)
    if isinstance(value, bool) or not (is_list(value) or isinstance(value, str | int | float)):
        raise ValueError(f"answers are neither text nor a list ({value!r:.60})")
    answers = []
    for item in value if is_list(value) else [value]:
        inner = item.get("text", item.get("answer")) if isinstance(item, Mapping) else item
        if not inner and isinstance(item, Mapping):  # an output of KILT that is evidence alone
            continue
        if isinstance(inner, bool) or not isinstance(inner, str | int | float):
            raise ValueError(f"an answer is not text ({inner!r:.60})")
        answers.append(str(inner))
    return tuple(answers)


def normal_record(record: Any) -> Record:
    """Bring a record of a known set to one shape; others come back as they are.

    | set | what is changed |
    |---|---|
    | sentence-transformers, Tevatron | `anchor` (or `query`), `positive`, `negative`, `negative_1`, … |
    | MuSiQue | `paragraphs` → `context`, `gold_titles` in the order of the steps; aliases join the answers |
    | SQuAD, one record per question | title as text, `answer_starts` |
    | TriviaQA | value, aliases and human answers → answers; capitalised field names of the official files |

    Raises:
        ValueError: no object, or a set's field holds something else than it does in that set.

    Example:
        >>> normal_record(["who", "x is", "y is"])["hard_negative_ctxs"]
        [{'text': 'y is'}]
    """
    if isinstance(record, list) and len(record) >= 2 and all(isinstance(text, str) for text in record):
        record = {"query": record[0], "pos": record[1], "neg": record[2:]}
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object, found {type(record).__name__}")
    for shape in _SHAPES:
        record = shape(record)
    return record


def _without(record: Record, names: Sequence[str], **changed: Any) -> dict[str, Any]:
    return {**{name: value for name, value in record.items() if name not in names}, **changed}


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


def pairs_of(value: Any, names: Sequence[str], field: str) -> list[tuple[Any, Any]]:
    """Pairs from two columns, a list of two-field mappings, or a list of pairs.

    Raises:
        ValueError: something else.
    """
    pairs = []
    for row in rows_of_columns(value):
        cells = [row[name] for name in names if name in row] if isinstance(row, Mapping) else row
        if not is_list(cells) or len(cells) != 2:
            raise ValueError(f"{field} holds something else than pairs ({row!r:.60})")
        pairs.append((cells[0], cells[1]))
    return pairs


def _pairs_and_triplets(record: Record) -> Record:
    question = next((n for n in ("anchor", "query", "question") if isinstance(record.get(n), str)), None)
    named = [name for name in _POSITIVES if name in record]  # the first that holds something
    positive = next((name for name in named if record[name]), named[0] if named else None)
    if question is None or positive is None:
        return record
    wrong = [name for name in record if _NEGATIVES.fullmatch(str(name))]
    negatives = [passage for name in wrong for passage in _passages(record[name])]
    return _without(
        record, (question, positive, *wrong), question=record[question],
        positive_ctxs=_passages(record[positive]), hard_negative_ctxs=negatives,
    )  # fmt: skip


def _passages(value: Any) -> list[Any]:
    listed = value if is_list(value) else [value]
    return [{"text": item} if isinstance(item, str) else item for item in listed if item]


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
    return _without(
        record, ("paragraphs", "answer", "answer_aliases"),
        context=[[str(item.get("title", "")), [item["paragraph_text"]]] for item in paragraphs],
        gold_titles=list(dict.fromkeys(str(paragraphs[place].get("title", "")) for place in places)),
        gold_paragraphs=places,
        answers=[] if record.get("answerable") is False else [text for text in answers if text],
    )  # fmt: skip


def _flat_squad(record: Record) -> Record:
    answers = record.get("answers")
    if not isinstance(record.get("context"), str) or "answer_starts" in record:
        return record
    if isinstance(answers, list) and answers and all(isinstance(item, Mapping) for item in answers):
        starts = [item.get("start", item.get("answer_start")) for item in answers]
        return {**record, "answer_starts": starts if all(isinstance(it, int) for it in starts) else []}
    if not (isinstance(answers, Mapping) and "text" in answers):
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
    field = record.get("answer")
    if not (isinstance(field, Mapping) and {"aliases", "Aliases"} & field.keys()):
        return record
    answer = {str(key).lower(): value for key, value in field.items()}
    texts = [answer.get("value"), *(answer.get("aliases") or ()), *(answer.get("humananswers") or ())]
    answers = [text for text in texts if isinstance(text, str) and text and text != _UNKNOWN_ANSWER]
    return {**record, "answer": answers, "answer_type": answer.get("type")}


_SHAPES = (_pairs_and_triplets, _musique, _flat_squad, _trivia)


class SquadParagraph(NamedTuple):
    """A paragraph of an article of SQuAD.

    Attributes:
        id: in a corpus: the article's title and the 0-based number.
        title: as text.
        text: None if it has none.
        questions: its questions, as in the file.
    """

    id: str
    title: str
    text: str | None
    questions: list[Any]


def squad_paragraphs(record: Any) -> list[SquadParagraph] | None:
    """The paragraphs of an article, with the questions inside; None if the record is none.

    Example:
        >>> squad_paragraphs({"title": "Nikola_Tesla", "paragraphs": [{"context": "He", "qas": []}]})
        [SquadParagraph(id='Nikola_Tesla-0', title='Nikola Tesla', text='He', questions=[])]
    """
    paragraphs = record.get("paragraphs") if isinstance(record, Mapping) else None
    if not isinstance(paragraphs, list) or not all(
        isinstance(item, Mapping) and ("qas" in item or "context" in item) for item in paragraphs
    ):
        return None
    title = str(record.get("title", ""))
    texts = (item.get("context") for item in paragraphs)
    return [
        SquadParagraph(
            f"{title}-{number}", squad_title(title), text if isinstance(text, str) else None,
            list(item.get("qas") or ()),
        )
        for number, (item, text) in enumerate(zip(paragraphs, texts, strict=True))
    ]  # fmt: skip


def squad_title(title: str) -> str:
    """The title of an article as text: without underscores and percent codes.

    Example:
        >>> squad_title("Beyonc%C3%A9_Knowles")
        'Beyoncé Knowles'
    """
    return unquote(title).replace("_", " ")
