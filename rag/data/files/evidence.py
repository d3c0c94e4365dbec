"""What a question's record says of its evidence: gold passages, distractors, supporting sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rag.core.types import GoldPassage, Passage
from rag.data.files.fields import is_list, join_sentences, passage_of
from rag.data.files.question_sets import pairs_of, rows_of_columns

_PLAIN_FIELDS: Mapping[str, tuple[str, type]] = {
    "type": ("kind", str),
    "level": ("level", str),
    "n_hops": ("hops", int),
    "hops": ("hops", int),
    "answer_is_regex": ("answers_are_regex", bool),
    "answers_are_regex": ("answers_are_regex", bool),
}


def evidence_of(record: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Gold passages, context, kind and level of a record, see `rag.data.files.question_sets`.

    The fields are `gold_passage_ids` (this system), `positive_ctxs` (DPR), `context` as text with `title` and
    `answer_starts` (SQuAD), `context` as pairs with `supporting_facts` (HotpotQA, 2WikiMultiHopQA) or
    `gold_titles` (MuSiQue), `pos_paras` with `bridge` (MDR's files), and `output` (KILT).

    Returns:
        Fields of `Question`, and the names of the record's fields that went into them.

    Raises:
        ValueError: a field has another shape; the message says which.

    Example:
        >>> facts = {"supporting_facts": [["B", 0]], "context": [["A", ["no"]], ["B", ["One.", " Two."]]]}
        >>> evidence_of(facts)[0]["gold"][0].passage.text
        'One. Two.'
    """
    used = {"gold_passage_ids", "is_impossible", "output"}
    fields: dict[str, Any] = {"gold_passage_ids": _ids(record.get("gold_passage_ids"))}
    for key, (name, type_) in _PLAIN_FIELDS.items():
        if isinstance(record.get(key), type_):
            fields[name] = record[key]
            used.add(key)
    if isinstance(record.get("output"), list | Mapping):
        outputs = (item for item in rows_of_columns(record["output"]) if isinstance(item, Mapping))
        sets = (rows_of_columns(item.get("provenance")) for item in outputs)
        fields["provenance"] = tuple(tuple(places) for places in sets if places)
    context = record.get("context")
    if isinstance(record.get("positive_ctxs"), list):
        gold = _passages(record, "positive_ctxs")
        fields |= {
            "gold": gold,
            "gold_are_alternatives": True,
            "context": _passages(record, "hard_negative_ctxs"),
        }
        ids = tuple(item.passage.id for item in gold if item.passage.id)
        fields["gold_passage_ids"] = fields["gold_passage_ids"] or ids
        used.add("positive_ctxs")
    elif isinstance(
        record.get("pos_paras"), list
    ):  # bridge questions: the page named `bridge` is the second hop
        gold = _passages(record, "pos_paras")
        fields["gold"] = tuple(sorted(gold, key=lambda item: item.passage.title == record.get("bridge")))
        fields["context"] = _passages(record, "neg_paras") or _passages(record, "tfidf_neg")
        used |= {"pos_paras", "neg_paras", "tfidf_neg", "bridge"}
    elif isinstance(context, str) and record.get("supporting_facts") is None:
        if context.strip():
            fields["gold"] = (GoldPassage(Passage("", str(record.get("title") or ""), context)),)
        fields["answer_starts"] = tuple(map(int, record.get("answer_starts") or ()))
        used |= {"context", "title", "answer_starts"}
    elif {"supporting_facts", "gold_titles"} & record.keys() or _are_pairs(context):
        fields |= _hops(record)
        used |= {"supporting_facts", "gold_titles", "gold_paragraphs", "context"}
    return fields, used


def _are_pairs(value: Any) -> bool:
    return is_list(value) and all(is_list(item) and len(item) == 2 for item in value)


def _ids(listed: Any) -> tuple[str, ...]:
    if listed is None:
        return ()
    if not isinstance(listed, list | tuple) or not all(isinstance(item, str | int) for item in listed):
        raise ValueError("gold_passage_ids is not a list of ids")
    return tuple(map(str, listed))


def _passages(record: Mapping[str, Any], field: str) -> tuple[GoldPassage, ...]:
    try:
        passages = [passage_of(item) for item in record.get(field) or ()]
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
    return tuple(GoldPassage(p if p.text.strip() else replace(p, text="")) for p in passages)


def _hops(record: Mapping[str, Any]) -> dict[str, Any]:
    """Gold paragraphs in the order of the facts, and the others.

    Source: Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval".
    """
    facts: dict[str, list[int]] = {}
    listed = pairs_of(record.get("supporting_facts"), ("title", "sent_id", "sent_idx"), "supporting_facts")
    for title, sentence in listed:
        facts.setdefault(str(title), []).append(int(sentence))
    named = list(map(str, record.get("gold_titles") or ()))  # one title twice means two paragraphs with it
    titles = [*named, *(title for title in facts if title not in named)]
    if record.get("context") is None:
        return {"gold": tuple(GoldPassage(Passage("", t, ""), (), tuple(facts.get(t, ()))) for t in titles)}
    pairs = pairs_of(record["context"], ("title", "sentences", "content"), "context")
    paragraphs = [_paragraph(str(title), inside) for title, inside in pairs]
    places: list[int] = list(record.get("gold_paragraphs") or ())
    # MuSiQue judges whole paragraphs, each of them one "sentence"
    gold = [replace(paragraphs[place], supporting=(0,)) for place in places]
    for title in titles if not places else ():
        same = [n for n, item in enumerate(paragraphs) if item.passage.title == title and n not in places]
        places += same[:1]
        paragraph = paragraphs[same[0]] if same else GoldPassage(Passage("", title, ""))
        gold.append(replace(paragraph, supporting=tuple(facts.get(title, ()))))
    others = tuple(item for number, item in enumerate(paragraphs) if number not in places)
    return {"gold": tuple(gold), "context": others}


def _paragraph(title: str, inside: str | Sequence[Any]) -> GoldPassage:
    sentences = () if isinstance(inside, str) else tuple(map(str, inside))
    text = inside if isinstance(inside, str) else join_sentences(sentences)
    return GoldPassage(Passage("", title, text), sentences)
