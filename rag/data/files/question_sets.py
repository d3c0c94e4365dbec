"""Records of the published question sets, in their official shape and that of their copies on a
hub.

A hub stores lists of pairs as columns, nests answers, and renames fields.
"""

import ast
import io
import json
import re
import tokenize
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rag.core.errors import DataError
from rag.core.types import AnswerProfile, GoldPassage, Passage, Question
from rag.data.files.fields import (
    first_of,
    is_strings,
    join_sentences,
    listed_names,
    passage_of,
    title_of_address,
)
from rag.data.files.rows import TableRow
from rag.data.metadata import is_list
from rag.data.records import BadRecord, fault_of_question
from rag.data.text import REGEX_PROFILE

# TriviaQA's own files spell their fields with capitals.
_ID_FIELDS = ("id", "_id", "qid", "question_id", "query_id", "example_id", "QuestionId")
_QUESTION_FIELDS = ("question", "query", "query_text", "input", "user_input", "text", "Question")
# Behind those of published sets FlashRAG's, and those of RAGAS, LlamaIndex and DeepEval.
_ANSWER_FIELDS = (
    *("answers", "answer", "output", "Answer", "golden_answers", "possible_answers"),
    *("ground_truth", "ground_truths", "reference", "reference_answer", "expected_output"),
)
# Of the pairs and triplets of sentence-transformers and Tevatron.
_ANCHOR_FIELDS = ("anchor", "query", "question", "query_text")
_POSITIVE_FIELDS = ("positive", "positives", "pos", "positive_passages")
_NEGATIVE_FIELD = re.compile(r"(?:hard_)?neg(?:ative)?s?(?:_passages|_?\d+)?")
_LABEL_FIELDS = ("label", "labels", "score", "scores")
# Columns of tables whose cells may hold several values.
_LIST_COLUMNS = (
    "answers",
    "answer",
    "golden_answers",
    "possible_answers",
    "ground_truths",
    "gold_passage_ids",
)
# TriviaQA's test questions have this as their answer.
_UNKNOWN_ANSWER = "<unk>"


def parse_record(record: object, fallback_id: str = "") -> tuple[Question, dict[str, object]]:
    """The question of a record of any known set, with its id and answers, and all other fields.

    Raises:
        ValueError: no question, or a field of another shape; the message says which.

    Example:
        >>> question, _ = parse_record({"_id": 7, "question": "Who?", "answer": {"text": "Ann"}})
        >>> question.id, question.answers
        ('7', ('Ann',))
    """
    rest = _fields_of(record)
    name, text = first_of(rest, _QUESTION_FIELDS)
    if name is None:
        expected = ", ".join(_QUESTION_FIELDS)
        raise ValueError(f"no question: expected one of {expected}; there are {listed_names(rest)}")
    if fault := fault_of_question(text):
        raise ValueError(f"the question {fault}")
    del rest[name]
    name, identifier = first_of(rest, _ID_FIELDS)
    if name is None:
        identifier = fallback_id
    elif isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise ValueError(f"the id is not text or a whole number ({identifier!r:.60})")
    else:
        del rest[name]
    answers = _take_answers(rest)
    is_regex = rest.pop("answers_are_regex", rest.pop("answer_is_regex", None)) is True
    profile: AnswerProfile = REGEX_PROFILE if is_regex else "squad"
    return Question(str(identifier), str(text), answers, answer_profile=profile), rest


def _fields_of(record: object) -> dict[str, Any]:
    """The fields of a record of any shape; a pair or triplet in the shape of DPR's files."""
    if isinstance(record, BadRecord):
        raise ValueError(f"{record.reason}: {record.detail}")
    if isinstance(record, TableRow):
        return _with_contexts(_typed_cells(record))
    if is_strings(record) and len(record) >= 2:
        return _with_contexts({"query": record[0], "positive": record[1], "negatives": record[2:]})
    if not isinstance(record, Mapping):
        raise ValueError(f"expected an object, found {type(record).__name__}")
    return _with_contexts(record)


def _typed_cells(row: TableRow) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for column, cell in row.items():
        name = column.lower()
        if cell and name in _LIST_COLUMNS:
            fields[name] = parse_cell(cell)
        elif cell or name in _POSITIVE_FIELDS:
            fields[name] = cell
    return fields


def _with_contexts(record: Mapping[str, Any]) -> dict[str, Any]:
    """A pair or triplet with its passages in the lists of DPR's files; another record as it is."""
    anchors = [name for name in _ANCHOR_FIELDS if isinstance(record.get(name), str)]
    positives = [name for name in _POSITIVE_FIELDS if name in record]
    if not anchors or not positives:
        return dict(record)
    fields: dict[str, Any] = {}
    negatives: list[Any] = []
    for name, value in record.items():
        if _NEGATIVE_FIELD.fullmatch(str(name)):
            negatives += _contexts(value, record.get(f"{name}_scores"))
        else:
            fields[name] = value
    filled = [name for name in positives if record[name]]
    right = (filled or positives)[0]
    fields["question"] = fields.pop(anchors[0])
    passages = _contexts(fields.pop(right), record.get(f"{right}_scores"))
    labels = first_of(record, _LABEL_FIELDS)[1]
    if labels is not None:
        passages, negatives = _by_label(passages, negatives, labels)
    fields["positive_ctxs"] = passages
    fields["hard_negative_ctxs"] = negatives
    return fields


def _by_label(right: list[Any], wrong: list[Any], labels: object) -> tuple[list[Any], list[Any]]:
    """The right and the wrong passages by the labels or scores of sentence-transformers.

    Beside negatives, a score for each passage is its target; anything else, such as a margin, does
    not change which passage is right.
    """
    passages = [*right, *wrong]
    values = labels if is_list(labels) else [labels]
    if wrong:
        if len(values) == len(passages):
            for passage, score in zip(passages, values, strict=True):
                passage["target"] = score
        return right, wrong
    # The cells of a table are text.
    grades = [str(value).removesuffix(".0") for value in values]
    if len(grades) != len(passages) or not {*grades} <= {"0", "1"}:
        raise ValueError(
            f"{len(passages)} passages without negatives have the label or score {labels!r:.60}, expected 1 "
            "for each right and 0 for each wrong one; leave it out where all are right"
        )
    wrong = [passage for passage, grade in zip(right, grades, strict=True) if grade == "0"]
    return [passage for passage in right if passage not in wrong], wrong


def _contexts(value: object, scores: object) -> list[Any]:
    """Passages, texts with the scores that a teacher gave them as their targets (FlagEmbedding)."""
    passages = value if is_list(value) else [value]
    targets = [None] * len(passages) if scores is None else scores
    if not is_list(targets) or len(targets) != len(passages):
        raise ValueError(f"{len(passages)} passages have other scores ({scores!r:.60})")
    contexts: list[Any] = []
    for passage, target in zip(passages, targets, strict=True):
        if isinstance(passage, str) and passage:
            contexts.append({"text": passage, "target": target})
        elif passage:
            contexts.append(passage)
    return contexts


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
            # Regular expressions have escapes that Python does not know.
            warnings.simplefilter("ignore")
            answers = answers_of(ast.literal_eval(stripped))
        kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(stripped).readline)]
        # An array of NumPy has no commas, and Python would join its texts.
        if kinds.count(tokenize.STRING) >= kinds.count(tokenize.OP):
            raise ValueError
        return answers
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise ValueError(f"not a list of answers: {stripped[:60]!r}") from error


def _take_answers(rest: dict[str, Any]) -> tuple[str, ...]:
    """The answers of the first field that has some; the fields that were looked at are removed."""
    for name in _ANSWER_FIELDS:
        if name not in rest:
            continue
        # KILT's "output" has the evidence, too.
        value = rest[name] if name == "output" else rest.pop(name)
        choices = rest.get("choices")
        if isinstance(value, str) and value[:2] in ('["', "['", "[]"):
            value = parse_cell(value)
        elif name == "golden_answers" and is_list(value) and is_strings(choices) and choices:
            # FlashRAG names the right ones of several by their numbers.
            value = [choices[n : n + 1] if isinstance(n, int) else n for n in value]
        answers = () if value is None else answers_of(value)
        if answers:
            return answers
    return ()


def answers_of(value: object) -> tuple[str, ...]:
    """Answers of any shape: text, a number, `{text}` or `{answer}` of these, TriviaQA's object, or
    a list of any of them.
    """
    if is_list(value):
        answers: list[str] = []
        for item in value:
            answers += answers_of(item)
        return tuple(answers)
    if isinstance(value, Mapping):
        fields = {str(name).lower(): inner for name, inner in value.items()}
        if "aliases" in fields:
            names = [fields.get("value"), *(fields["aliases"] or ())]
            names += fields.get("humananswers") or ()
            return tuple(
                name
                for name in names
                if isinstance(name, str) and name not in ("", _UNKNOWN_ANSWER)
            )
        # KILT states evidence alone, too.
        if not fields.keys() & {"text", "answer", "provenance"}:
            raise ValueError("answers are an object without 'text'")
        inner = fields.get("text", fields.get("answer"))
        return () if inner is None else answers_of(inner)
    # NaN, by which pandas writes that there is none.
    if value != value:
        return ()
    if isinstance(value, bool):
        # Of StrategyQA and BoolQ.
        return (("no", "yes")[value],)
    if not isinstance(value, str | int | float):
        raise ValueError(f"an answer is not text ({value!r:.60})")
    # Copies of sets fill a question without an answer with an empty one.
    return (str(value),) if str(value).strip() else ()


def question_of(record: object, fallback_id: str) -> Question:
    """The question of a record of any known set, with its evidence; other fields are `meta`.

    Evidence is `gold_passage_ids` (this system), `positive_document_ids` (Tevatron, of a corpus
    apart), `positive_ctxs` (DPR), `context` as text with `title` and places of answers (SQuAD),
    `context` as pairs with `supporting_facts` (HotpotQA, 2WikiMultiHopQA) or `gold_titles`,
    `pos_paras` (MDR), `paragraphs` (MuSiQue) and `output` (KILT).

    Raises:
        ValueError: no question, or a field of another shape; the message says which.

    Example:
        >>> facts = {"supporting_facts": [["B", 0]], "context": [["A", ["no"]], ["B", ["One.", " Two."]]]}
        >>> question_of({"question": "q", **facts}, "q1").gold[0].passage.text
        'One. Two.'
    """
    parsed, rest = parse_record(record, fallback_id)
    alternatives = rest.pop("positive_document_ids", None)
    ids = rest.pop("gold_passage_ids", alternatives)
    ids = () if ids is None else ids
    if not isinstance(ids, list | tuple) or not all(isinstance(id, str | int) for id in ids):
        raise ValueError("gold_passage_ids is not a list of ids")
    question = replace(
        parsed,
        answers=tuple(dict.fromkeys(parsed.answers)),
        gold_passage_ids=tuple(map(str, ids)),
        gold_are_alternatives=alternatives is not None,
        provenance=_provenance(rest.pop("output", None)),
    )
    question = _with_evidence(question, rest, record)
    # The cells of a table are text.
    if str(rest.pop("is_impossible", None)).lower() == "true":
        question = replace(question, answers=(), is_impossible=True)
    return replace(question, meta=rest)


def _provenance(output: object) -> tuple[tuple[Mapping[str, Any], ...], ...]:
    """KILT's evidence sets."""
    if not isinstance(output, list | Mapping):
        return ()
    sets = []
    for item in rows_of_columns(output):
        if isinstance(item, Mapping):
            sets.append(tuple(rows_of_columns(item.get("provenance"))))
    return tuple(filter(None, sets))


def _with_evidence(question: Question, rest: dict[str, Any], record: object) -> Question:
    """The question with the gold passages and distractors of its set, whose fields are removed."""
    context = rest.get("context")
    is_hotpot = "supporting_facts" in rest or "gold_titles" in rest
    is_musique = "question_decomposition" in rest or "answer_aliases" in rest
    if isinstance(rest.get("positive_ctxs"), list):
        return _of_dpr(question, rest)
    if isinstance(context, str) and rest.get("supporting_facts") is None:
        raw_answers = record.get("answers") if isinstance(record, Mapping) else None
        return _of_squad(question, rest, raw_answers)
    if isinstance(rest.get("pos_paras"), list):
        return _of_mdr(question, rest)
    if "paragraphs" in rest and is_musique:
        return _of_musique(question, rest)
    if is_hotpot or (
        is_list(context) and all(is_list(pair) and len(pair) == 2 for pair in context)
    ):
        return _of_hotpot(question, rest)
    return question


def _of_mdr(question: Question, rest: dict[str, Any]) -> Question:
    """With the paragraphs of both hops, that of the bridge last, and the wrong ones."""
    bridge = rest.get("bridge")
    gold = sorted(
        _gold_passages(rest.pop("pos_paras")), key=lambda item: item.passage.title == bridge
    )
    return replace(
        question,
        gold=tuple(gold),
        gold_are_ordered=bool(gold) and gold[-1].passage.title == bridge,
        context=_gold_passages(rest.pop("neg_paras", None) or ()),
    )


def _of_dpr(question: Question, rest: dict[str, Any]) -> Question:
    gold = _gold_passages(rest.pop("positive_ctxs"))
    ids = tuple(item.passage.id for item in gold if item.passage.id)
    return replace(
        question,
        gold=gold,
        gold_passage_ids=question.gold_passage_ids or ids,
        gold_are_alternatives=True,
        context=_gold_passages(rest.get("hard_negative_ctxs") or ()),
    )


def _gold_passages(contexts: Sequence[object]) -> tuple[GoldPassage, ...]:
    gold = []
    for context in contexts:
        passage = passage_of(context)
        if not passage.text.strip():
            passage = replace(passage, text="")
        gold.append(GoldPassage(passage))
    return tuple(gold)


def _of_squad(question: Question, rest: dict[str, Any], raw_answers: object) -> Question:
    """With the paragraph that the question is asked of, and where its answers begin there."""
    title = str(rest.pop("title", None) or "")
    context = rest.pop("context")
    labels: list[Any] = []
    if isinstance(raw_answers, list | Mapping):
        labels = rows_of_columns(raw_answers)
    if isinstance(raw_answers, Mapping):
        # A copy on a hub, which does not say what is impossible.
        title = title_of_address(title)
        if not labels:
            rest["is_impossible"] = True
    starts = [
        label.get("start", label.get("answer_start"))
        for label in labels
        if isinstance(label, Mapping)
    ]
    if not all(isinstance(start, int) for start in starts):
        starts = []
    gold = (GoldPassage(Passage("", title, context)),) if context.strip() else ()
    return replace(question, gold=gold, answer_starts=tuple(starts))


def _of_hotpot(question: Question, rest: dict[str, Any]) -> Question:
    """With gold paragraphs in the order of the facts, and the others.

    Source: Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense
        Retrieval".
    """
    facts: dict[str, list[int]] = {}
    columns = ("title", "sent_id", "sent_idx")
    for title, sentence in _pairs(rest.pop("supporting_facts", None), columns, "supporting_facts"):
        facts.setdefault(str(title), []).append(int(sentence))
    columns = ("title", "sentences", "content")
    others = [
        _paragraph(str(title), content)
        for title, content in _pairs(rest.pop("context", None), columns, "context")
    ]
    # A title that is named twice stands for two paragraphs with it.
    titles = [str(title) for title in rest.pop("gold_titles", None) or ()]
    titles += [title for title in facts if title not in titles]
    gold = []
    for title in titles:
        quoted = GoldPassage(Passage("", title, ""))
        for paragraph in others:
            if paragraph.passage.title == title:
                quoted = paragraph
                others.remove(paragraph)
                break
        gold.append(replace(quoted, supporting=tuple(facts.get(title, ()))))
    return replace(question, gold=tuple(gold), context=tuple(others))


def _paragraph(title: str, content: str | Sequence[Any]) -> GoldPassage:
    if isinstance(content, str):
        return GoldPassage(Passage("", title, content))
    sentences = tuple(map(str, content))
    return GoldPassage(Passage("", title, join_sentences(sentences)), sentences)


def _of_musique(question: Question, rest: dict[str, Any]) -> Question:
    """With gold paragraphs in the order of the steps, and the others; each is one "sentence"."""
    answers = dict.fromkeys([*question.answers, *(rest.pop("answer_aliases", None) or ())])
    rest["is_impossible"] = rest.pop("answerable", None) is False
    steps = rows_of_columns(rest.pop("question_decomposition", None))
    order = [step.get("paragraph_support_idx") for step in steps if isinstance(step, Mapping)]
    gold: list[tuple[int, GoldPassage]] = []
    others: list[GoldPassage] = []
    for position, item in enumerate(rows_of_columns(rest.pop("paragraphs"))):
        if not isinstance(item, Mapping) or "paragraph_text" not in item:
            raise ValueError("paragraphs without 'paragraph_text'")
        paragraph = _paragraph(str(item.get("title", "")), [item["paragraph_text"]])
        if item.get("is_supporting"):
            number = item.get("idx", position)
            step = order.index(number) if number in order else len(order)
            gold.append((step, replace(paragraph, supporting=(0,))))
        else:
            others.append(paragraph)
    gold.sort(key=lambda pair: pair[0])
    return replace(
        question,
        answers=tuple(answers),
        gold=tuple(paragraph for _, paragraph in gold),
        gold_are_ordered=all(step < len(order) for step, _ in gold),
        context=tuple(others),
    )


def rows_of_columns(value: object) -> list[Any]:
    """A list as it is, also as JSON in a text (copies of 2WikiMultiHopQA); a mapping of equally
    long lists as a list of mappings; [] for None.
    """
    if isinstance(value, str) and value[:1] in ("[", "{"):
        value = json.loads(value)
    if isinstance(value, Mapping):
        columns = list(value.values())
        if not all(is_list(column) and len(column) == len(columns[0]) for column in columns):
            raise ValueError("columns of different length, or not lists")
        return [dict(zip(value, cells, strict=True)) for cells in zip(*columns, strict=True)]
    if value is not None and not is_list(value):
        raise ValueError(f"expected a list, found {type(value).__name__}")
    return list(value or ())


def _pairs(value: object, names: Sequence[str], field: str) -> list[Sequence[Any]]:
    """Pairs from two columns, a list of two-field mappings, or a list of pairs."""
    pairs = []
    for row in rows_of_columns(value):
        pair = row
        if isinstance(row, Mapping):
            pair = [row[name] for name in names if name in row]
        if not is_list(pair) or len(pair) != 2:
            raise ValueError(f"{field} holds something else than pairs ({row!r:.60})")
        pairs.append(pair)
    return pairs


def table_columns(row: list[str], path: str) -> list[str] | None:
    """Names for the columns of a table of questions or training pairs, guessed from its first row;
    None if that row names them.

    Known are DPR's question and answers, id and question, pairs or triplets of texts, and the ids
    of a question, a right and a wrong passage (MS MARCO's `qidpidtriples`).

    Raises:
        DataError: the row is none of these.
    """
    cells = [cell.strip() for cell in row]
    names = {cell.lower() for cell in cells}
    if names & {"question", "query", "anchor"}:
        return None
    if len(row) in (2, 3):
        if cells[-1][:1] + cells[-1][-1:] in ("[]", "()"):
            return ["id", "question", "answers"][-len(row) :]
        if all(" " in cell for cell in cells):
            return ["anchor", "positive", "negative"][: len(row)]
    if len(row) == 3 and all(cell.isdecimal() for cell in cells):
        return ["question_id", "positive_id", "negative_id"]
    is_header = all(cell.isidentifier() for cell in cells)
    if len(row) == 2 and " " not in cells[0] and not is_header:
        return ["id", "question"]
    raise DataError(
        f"{path}:1: no column 'question' among {', '.join(row)}",
        hint="begin the table with a line that calls the column of the questions 'question', that of the "
        "answers 'answers' and that of ids 'id'; without it: question and ['answer', …], or id and question",
    )
