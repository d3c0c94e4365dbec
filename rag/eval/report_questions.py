"""The questions shown in the report: the worst ones, and those two systems disagree on."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rag.eval.markup import Child, Html, el, join, marked
from rag.eval.report_labels import percent
from rag.eval.scoring import STAGES

__all__ = ["pick_records", "question_card", "worst_records"]

Record = Mapping[str, Any]


def worst_records(records: Iterable[Record], limit: int) -> list[Record]:
    """The most confident wrong answers; without answers, the questions whose answer was found last or not
    at all.

    Questions without accepted answers are never shown: nothing says that they went wrong.
    """

    def badness(record: Record) -> float | None:
        scores = record["scores"]
        if scores.get("em") is not None:
            return None if scores["em"] == 1.0 else float(record.get("confidence") or 0.0)
        if scores.get("mrr") is not None and record["first_rank"] != 1:
            return float(record["first_rank"] or 10**6)
        return None

    ranked = (
        (value, -order, record)
        for order, record in enumerate(records)
        if (value := badness(record)) is not None
    )
    return [record for _, _, record in heapq.nlargest(limit, ranked, key=lambda item: item[:2])]


def pick_records(records: Iterable[Record], ids: Collection[str]) -> dict[str, Record]:
    """The records of some questions, by id."""
    wanted = set(ids)
    return {record["id"]: record for record in records if record["id"] in wanted}


def question_card(
    record: Record,
    others: Sequence[tuple[str, Record]] = (),
    *,
    passages: int = 3,
    unfolded: bool = False,
) -> Html:
    """One question, folded: what was asked, expected, said, read and retrieved.

    Args:
        record: of the system the card is about.
        others: (name, record) of other systems on the same question, whose answers are shown too.
        passages: retrieved passages to show.
        unfolded: show it open.
    """
    stage = record.get("stage")
    tag = el("span", stage, class_=f"tag {stage}", title=STAGES[stage]) if stage in STAGES else None
    said: list[Child] = []
    if record["answers"]:
        said += [el("dt", "expected"), el("dd", " · ".join(record["answers"][:6]))]
    if "prediction" in record:
        said += [el("dt", "said"), el("dd", _answer(record))]
        if len(record.get("n_best") or ()) > 1:
            rest = " · ".join(f"{a['text']} ({percent(a['confidence'], 0)})" for a in record["n_best"][1:4])
            said += [el("dt", "also considered"), el("dd", rest, class_="soft")]
    if "gold_passage_prediction" in record:
        said += [el("dt", "from gold alone"), el("dd", record["gold_passage_prediction"] or "nothing")]
    for name, other in others:
        said += [el("dt", name), el("dd", _answer(other))]
    if "facts" in record and "gold_facts" in record:
        said += [el("dt", "supporting facts"), el("dd", _facts(record["facts"], record["gold_facts"]))]
        missed = [fact for fact in record["gold_facts"] if fact not in record["facts"]]
        if missed:
            said += [el("dt", "facts missed"), el("dd", " · ".join(map(_fact, missed)))]
    rank = record.get("first_rank")
    if record["scores"].get("mrr") is not None:
        found = f"at rank {rank}" if rank else f"not among the {len(record['hits'])} passages"
        said += [el("dt", "answer found"), el("dd", found)]
    return el(
        "details",
        el("summary", tag, " " if tag else None, record["question"]),
        el("dl", join(said), class_="said"),
        _evidence(record),
        _retrieved(record, passages),
        class_="q",
        open_="" if unfolded else None,
    )


def _fact(fact: Sequence[Any]) -> str:
    return f"{fact[0]}, sentence {fact[1] + 1}"


def _facts(facts: Sequence[Sequence[Any]], gold: Sequence[Sequence[Any]]) -> Html:
    parts: list[Child] = []
    for fact in facts:
        is_right = fact in gold
        verdict = el("span", " ✓" if is_right else " ✗", class_="better" if is_right else "worse")
        parts += [" · " if parts else None, _fact(fact), verdict]
    return join(parts) if parts else el("span", "none", class_="soft")


def _answer(record: Record) -> Html:
    text = record.get("prediction")
    if not text:
        return el("span", "nothing", class_="soft")
    right = record["scores"].get("em") == 1.0
    verdict = el("span", " ✓" if right else " ✗", class_="better" if right else "worse")
    return join([text, verdict, el("small", f"  confidence {percent(record['confidence'], 0)}")])


def _evidence(record: Record) -> Html | None:
    evidence = record.get("evidence")
    if not evidence:
        return None
    return el(
        "div",
        el("small", "read in "),
        el("b", evidence["title"] or evidence["passage_id"]),
        el("div", marked(evidence["text"], [(evidence["start"], evidence["end"], "read")])),
        class_="passage used",
    )


def _retrieved(record: Record, passages: int) -> Html | None:
    shown = []
    for rank, hit in enumerate(record["hits"][:passages], start=1):
        if "text" not in hit:
            break
        notes = [f"rank {rank}", f"score {hit['score']:.3f}"]
        notes += ["holds an answer"] if hit["has_answer"] else []
        notes += ["gold"] if hit.get("is_gold") else []
        useful = hit["has_answer"] or hit.get("is_gold")
        shown.append(
            el(
                "div",
                el("small", " · ".join(notes) + " · "),
                el("b", hit["title"] or hit["id"]),
                el("div", marked(hit["text"], _spans(hit["text"], record["answers"]))),
                class_="passage hit" if useful else "passage",
            )
        )
    return el("div", el("small", "retrieved"), shown) if shown else None


def _spans(text: str, answers: Sequence[str]) -> list[tuple[int, int, str]]:
    lowered = text.lower()
    if len(lowered) != len(text):  # a few characters change their length; then nothing is highlighted
        return []
    spans = []
    for answer in answers:
        start = lowered.find(answer.lower()) if answer.strip() else -1
        if start >= 0:
            spans.append((start, start + len(answer), "gold"))
    return spans
