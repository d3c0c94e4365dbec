"""Parse records with various field names, and table cells, to questions with their evidence."""

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rag.core.types import GoldPassage, Passage, Question
from rag.core.unicode import is_unicode
from rag.data.files.fields import (
    QUESTION_ID_FIELDS,
    first_of,
    join_sentences,
    listed_names,
    passage_of,
)
from rag.data.files.question_shapes import official_shape, rows_of_columns
from rag.data.files.streams import parse_json
from rag.data.files.training_shapes import training_shape

QUESTION_FIELDS = ("question", "query", "input", "text")
_ANSWER_FIELDS = ("answers", "answer", "golden_answers", "possible_answers", "output", "short_answers")
_PLAIN_FIELDS: Mapping[str, tuple[str, type]] = {
    "type": ("kind", str),
    "level": ("level", str),
    "n_hops": ("hops", int),
    "hops": ("hops", int),
    "answer_is_regex": ("answers_are_regex", bool),
    "answers_are_regex": ("answers_are_regex", bool),
}


def question_from_mapping(record: Any, fallback_id: str) -> Question:
    """Read one record of any known shape; fields that are not understood are kept in `meta`.

    The known shapes are this system's sample, DPR's training and result files, NQ-open, KILT (answers and
    provenance out of `output`), BEIR queries, FiD, and the sets of `rag.data.files.question_shapes`.

    Raises:
        ValueError: no question, or answers of an unknown shape; the message says which.
    """
    record = training_shape(record)
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object, found {type(record).__name__}")
    record = official_shape(record)
    used: set[str] = set()
    text_field = next((name for name in QUESTION_FIELDS if record.get(name) is not None), None)
    if text_field is None:
        raise ValueError(
            f"no question: expected one of {', '.join(QUESTION_FIELDS)}; there are {listed_names(record)}"
        )
    text = record[text_field]
    used.add(text_field)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the question is not text, or is empty ({text!r:.60})")
    check_text(text)
    id_field, identifier = first_of(record, QUESTION_ID_FIELDS)
    if id_field is not None:
        if isinstance(identifier, bool) or not isinstance(identifier, str | int):
            raise ValueError(f"the id is not text or a whole number ({identifier!r:.60})")
        used.add(id_field)
    answers: tuple[str, ...] = ()
    fields, read = gold_fields(record)
    for name in _ANSWER_FIELDS:
        if name in record and not answers:
            read.add(name)
            answers = _answers(record[name])
            if name == "output":
                outputs = record[name] if isinstance(record[name], list) else []
                sets = (item.get("provenance") for item in outputs if isinstance(item, Mapping))
                fields["provenance"] = tuple(tuple(places) for places in sets if places)
    if record.get("is_impossible") is True:
        answers, fields["is_impossible"] = (), True
        read.add("is_impossible")
    meta = {key: value for key, value in record.items() if key not in used | read}
    return Question(fallback_id if id_field is None else str(identifier), text, answers, meta=meta, **fields)


def check_text(text: str) -> None:
    """Refuse text that cannot be written as UTF-8, or that holds NUL characters.

    Raises:
        ValueError: with the reason.
    """
    if "\x00" in text:
        raise ValueError("NUL character in the question")
    if not is_unicode(text):
        raise ValueError("the question is not valid Unicode")


def parse_answer_cell(cell: str, *, must_be_list: bool) -> tuple[str, ...]:
    """Read a table's cell: a Python or JSON list of strings; or, if allowed, an answer or some between bars.

    Literals are parsed, never evaluated. A bar in brackets, after a backslash or beside nothing belongs to
    its answer, so that patterns keep their meaning.

    Raises:
        ValueError: not a list of strings.

    Example:
        >>> parse_answer_cell("['Paris', \\"L'Isle\\"]", must_be_list=True)
        ('Paris', "L'Isle")
        >>> parse_answer_cell("Paris | Lutetia", must_be_list=False)
        ('Paris', 'Lutetia')
        >>> parse_answer_cell("(May|June) 1", must_be_list=False)
        ('(May|June) 1',)
    """
    stripped = cell.strip()
    if not stripped.startswith(("[", "(")):
        if must_be_list:
            raise ValueError(f"expected a list such as ['answer'], found {stripped[:60]!r}")
        parts = [part.strip() for part in cell.split("|")]
        if len(parts) > 1 and all(map(_is_whole, parts)):
            return tuple(dict.fromkeys(parts))
        return (cell,) if stripped else ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # regular expressions with escapes that Python does not know
            value = ast.literal_eval(stripped)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        try:
            value = parse_json(stripped)
        except ValueError:
            if must_be_list:
                raise ValueError(f"not a list of answers: {stripped[:60]!r}") from None
            return (cell,)
    return _answers(list(value) if isinstance(value, tuple) else value)


def _is_whole(part: str) -> bool:
    """Whether a part of a cell can be an answer by itself."""
    is_closed = all(part.count(one) == part.count(other) for one, other in ("()", "[]", "{}"))
    return bool(part) and is_closed and not part.endswith("\\")


def parse_id_cell(cell: str) -> list[str]:
    """Read a table's cell of ids: one, several separated by commas, semicolons, bars or blanks, or a list.

    Raises:
        ValueError: a list of something else.

    Example:
        >>> parse_id_cell("d1; d2"), parse_id_cell("['d1']")
        (['d1', 'd2'], ['d1'])
    """
    if cell.lstrip().startswith("["):
        return list(parse_answer_cell(cell, must_be_list=True))
    return [part for part in re.split(r"[,;|\s]+", cell) if part]


def _answers(value: Any) -> tuple[str, ...]:
    """Text, a number, a list of these, or of `{text}` or `{answer}`, or `{text: [...]}`; each once."""
    if value is None:
        return ()
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return (str(value),)
    if isinstance(value, Mapping):
        inner = value.get("text", value.get("answer"))
        if inner is None:
            raise ValueError("answers are an object without 'text'")
        return _answers(inner)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        answers: dict[str, None] = {}
        for item in value:
            inner = item.get("text", item.get("answer")) if isinstance(item, Mapping) else item
            if inner is None and isinstance(item, Mapping):
                continue
            if isinstance(inner, bool) or not isinstance(inner, str | int | float):
                raise ValueError(f"an answer is not text ({inner!r:.60})")
            answers[str(inner)] = None
        return tuple(answers)
    raise ValueError(f"answers are neither text nor a list ({value!r:.60})")


def gold_fields(record: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Gold passages, context, kind and level of a record.

    The known fields are `gold_passage_ids` (this system), `positive_ctxs` (DPR), `context` as text with
    `title` and `answer_starts` (SQuAD), `context` as pairs with `supporting_facts` (HotpotQA,
    2WikiMultiHopQA) or `gold_titles` (MuSiQue), and `pos_paras` with `bridge` (MDR's files).

    Returns:
        Fields of `Question`, and the names of the record's fields that went into them.

    Raises:
        ValueError: a field has another shape; the message says which.

    Example:
        >>> facts = {"supporting_facts": [["B", 0]], "context": [["A", ["no"]], ["B", ["One.", " Two."]]]}
        >>> gold_fields(facts)[0]["gold"][0].passage.text
        'One. Two.'
    """
    used = {"gold_passage_ids"}
    fields: dict[str, Any] = {"gold_passage_ids": _given_ids(record.get("gold_passage_ids"))}
    for key, (name, type_) in _PLAIN_FIELDS.items():
        if isinstance(record.get(key), type_):
            fields[name] = record[key]
            used.add(key)
    context = record.get("context")
    if isinstance(record.get("positive_ctxs"), list):
        gold = _dpr_passages(record, "positive_ctxs")
        others = _dpr_passages(record, "hard_negative_ctxs")
        fields |= {"gold": gold, "gold_are_alternatives": True, "context": others}
        fields["gold_passage_ids"] = fields["gold_passage_ids"] or tuple(
            item.passage.id for item in gold if item.passage.id
        )
        used.add("positive_ctxs")
    elif isinstance(context, str):
        if context.strip():
            fields["gold"] = (GoldPassage(Passage("", str(record.get("title") or ""), context)),)
        starts = record.get("answer_starts") or _starts(record.get("answers"))
        fields["answer_starts"] = tuple(map(int, starts))
        used |= {"context", "title", "answer_starts"}
    elif isinstance(record.get("pos_paras"), list):
        fields |= _mdr(record)
        used |= {"pos_paras", "neg_paras", "tfidf_neg", "bridge"}
    else:
        fields |= _multi_hop(record)
        used |= {"supporting_facts", "gold_titles", "gold_paragraphs"}
        if "context" in fields:
            used.add("context")
    return fields, used


def _starts(answers: Any) -> list[int]:
    """First characters of answers that are objects with their text and place; none unless all are."""
    listed = answers if isinstance(answers, list) else []
    starts = [item.get("start", item.get("answer_start")) for item in listed if isinstance(item, Mapping)]
    return starts if len(starts) == len(listed) and all(isinstance(start, int) for start in starts) else []


def _given_ids(given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, list | tuple) or not all(isinstance(item, str | int) for item in given):
        raise ValueError("gold_passage_ids is not a list of ids")
    return tuple(str(item) for item in given)


def _dpr_passages(record: Mapping[str, Any], field: str) -> tuple[GoldPassage, ...]:
    try:
        passages = [passage_of(item) for item in record.get(field) or ()]
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
    return tuple(GoldPassage(p if p.text.strip() else replace(p, text="")) for p in passages)


def _mdr(record: Mapping[str, Any]) -> dict[str, Any]:
    """Bridge questions: the page named `bridge` is the second hop.

    Source: Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval".
    """
    gold = sorted(_dpr_passages(record, "pos_paras"), key=lambda g: g.passage.title == record.get("bridge"))
    others = _dpr_passages(record, "neg_paras") or _dpr_passages(record, "tfidf_neg")
    return {"gold": tuple(gold), "context": others}


def _multi_hop(record: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, list[int]] = {}
    for title, sentence in record.get("supporting_facts") or ():
        facts.setdefault(str(title), []).append(int(sentence))
    named = list(map(str, record.get("gold_titles") or ()))  # one title twice means two paragraphs with it
    titles = [*named, *(title for title in facts if title not in named)]
    paragraphs = _paragraphs(record.get("context"))
    if paragraphs is None:
        return {"gold": tuple(GoldPassage(Passage("", t, ""), (), tuple(facts.get(t, ()))) for t in titles)}
    places: list[int] = list(record.get("gold_paragraphs") or ())
    # MuSiQue judges whole paragraphs, each of them one "sentence"
    gold = [replace(paragraphs[place], supporting=(0,)) for place in places]
    if not places:
        for title in titles:
            same = [n for n, item in enumerate(paragraphs) if item.passage.title == title and n not in places]
            places += same[:1]
            paragraph = paragraphs[same[0]] if same else GoldPassage(Passage("", title, ""))
            gold.append(GoldPassage(paragraph.passage, paragraph.sentences, tuple(facts.get(title, ()))))
    others = tuple(item for number, item in enumerate(paragraphs) if number not in places)
    return {"gold": tuple(gold), "context": others}


def _paragraphs(context: Any) -> list[GoldPassage] | None:
    """Pairs of title and sentences; None if the field holds something else."""
    if isinstance(context, Mapping):
        if not {"title", "sentences"} <= context.keys():
            return None
        context = [(row["title"], row["sentences"]) for row in rows_of_columns(context)]
    if not isinstance(context, Sequence) or not all(
        isinstance(entry, list | tuple) and len(entry) == 2 for entry in context
    ):
        return None
    paragraphs = []
    for title, inside in context:
        sentences = () if isinstance(inside, str) else tuple(str(sentence) for sentence in inside)
        text = inside if isinstance(inside, str) else join_sentences(sentences)
        paragraphs.append(GoldPassage(Passage("", str(title), text), sentences))
    return paragraphs
