"""What a record in its set's official shape says about its evidence, as the typed fields of a `Question`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rag.core.types import GoldPassage, Passage
from rag.data.files.fields import join_sentences, passage_of
from rag.data.files.question_shapes import rows_of_columns

__all__ = ["gold_fields"]

_PLAIN_FIELDS: Mapping[str, tuple[str, type]] = {
    "type": ("kind", str),
    "level": ("level", str),
    "n_hops": ("hops", int),
    "hops": ("hops", int),
    "answer_is_regex": ("answers_are_regex", bool),
    "answers_are_regex": ("answers_are_regex", bool),
}


def gold_fields(record: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Gold passages, context, kind and level of a record.

    Known are `gold_passage_ids` (this system), `positive_ctxs` (DPR), `context` as text with `title` and
    `answer_starts` (SQuAD), `context` as pairs with `supporting_facts` (HotpotQA, 2WikiMultiHopQA) or
    `gold_titles` (MuSiQue), and `pos_paras` with `bridge` (MDR's files).

    Returns:
        Fields of `Question`, and the names of the record's fields that went into them.

    Raises:
        ValueError: a field has another shape; the message says which.

    Example:
        >>> facts = {"supporting_facts": [["B", 0]], "context": [["A", ["no"]], ["B", ["One.", " Two."]]]}
        >>> gold_fields(facts)[0]["gold"][0].passage
        Passage(id='', title='B', text='One. Two.')
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
        fields |= {"gold": gold, "gold_are_alternatives": True}
        fields["gold_passage_ids"] = fields["gold_passage_ids"] or tuple(
            item.passage.id for item in gold if item.passage.id
        )
        used.add("positive_ctxs")
    elif isinstance(context, str):
        if context.strip():
            fields["gold"] = (GoldPassage(Passage("", str(record.get("title") or ""), context)),)
        fields["answer_starts"] = tuple(map(int, record.get("answer_starts") or ()))
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
            found = paragraphs[same[0]] if same else GoldPassage(Passage("", title, ""))
            gold.append(GoldPassage(found.passage, found.sentences, tuple(facts.get(title, ()))))
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
    found = []
    for title, inside in context:
        sentences = () if isinstance(inside, str) else tuple(str(sentence) for sentence in inside)
        text = inside if isinstance(inside, str) else join_sentences(sentences)
        found.append(GoldPassage(Passage("", str(title), text), sentences))
    return found
