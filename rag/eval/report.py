"""One self-contained HTML page about one evaluation, or several side by side."""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError
from rag.core.files import atomic_write_text
from rag.core.progress import format_duration, format_seconds
from rag.eval.compare import Comparison, compare_evaluations
from rag.eval.report_labels import (
    NATS,
    describe,
    describe_group,
    main_figures,
    ordered,
    percent,
    system_name,
    with_interval,
)
from rag.eval.report_plots import curve_notes, curve_plots
from rag.eval.results import Evaluation
from rag.eval.scoring import STAGES

Record = Mapping[str, Any]
Pieces = list[tuple[str, str]]  # text and its class; "" for what is not highlighted

_FOLDED_FROM = 16  # above this number the main figures are shown, the rest when unfolded
_FLIPS, _WORST = 8, 20  # questions shown for each pair of systems, for each system


def write_report(evaluations: Sequence[Evaluation], path: str | Path) -> None:
    """Write the page; see `render_report`."""
    atomic_write_text(path, render_report(evaluations))


def render_report(evaluations: Sequence[Evaluation]) -> str:
    """The page as a string: no script, no external resource, every text escaped.

    Args:
        evaluations: one, or several over the same questions; the others are compared with the first.

    Raises:
        ConfigError: no evaluation was given.
        MismatchedArtifactError: their question sets differ.
    """
    if not evaluations:
        raise ConfigError("there is no evaluation to report on")
    first, several = evaluations[0].metrics, len(evaluations) > 1
    compared = compare_evaluations(evaluations) if several else []
    names = ordered(name for e in evaluations for name in e.metrics["figures"] if name not in NATS)
    main = names
    if len(names) >= _FOLDED_FROM:
        main = ordered(main_figures(dict.fromkeys(names), limit=10))
    data: dict[str, Any] = {
        "heading": f"Questions of {first['question_set']['name']}: how well are they answered?",
        "evaluations": evaluations,
        "several": several,
        "chips": _chips(first),
        "summary": [_summary(evaluation) for evaluation in evaluations],
        "tiles": [] if several else _tiles(first),
        "main_names": main,
        "more_names": [name for name in names if name not in main],
        "compared": compared,
        "many": len({(row.a, row.b) for row in compared}) > 1,
        "first_name": _the_only([row.a for row in compared], "first"),
        "second_name": _the_only([row.b for row in compared], "second"),
        "curve_plots": curve_plots(evaluations),
        "curve_notes": curve_notes(evaluations),
        "seen_stages": {stage for e in evaluations for stage in e.metrics["stages"]},
        "breakdowns": _breakdowns(evaluations),
        "has_no_span": _has_no_span(first["breakdowns"].get("answer type", [])),
        "asked": ", ".join(
            (f"{e.name} " if several else "") + format_duration(e.metrics["wall_s"]["asking"])
            for e in evaluations
        ),
        "flips": _flips(evaluations, compared),
        "worst": [(e.name, found) for e in evaluations if (found := worst_records(e.records(), _WORST))],
    }
    sections = {
        "figures": ("Figures", True),
        "comparison": ("Comparison", bool(compared)),
        "curves": ("Retrieval and confidence", bool(data["curve_plots"])),
        "misses": ("Where answers are lost", bool(data["seen_stages"])),
        "groups": ("Kinds of questions", bool(data["breakdowns"])),
        "time": ("Time", any(e.metrics["latency_ms"] for e in evaluations)),
        "flips": ("Questions that flipped", bool(data["flips"])),
        "worst": ("Worst questions", bool(data["worst"])),
        "made": ("How this was made", True),
    }
    data["sections"] = [(key, name) for key, (name, is_shown) in sections.items() if is_shown]
    return report_environment(evaluations).get_template("report.html").render(data)


def report_environment(evaluations: Sequence[Evaluation]) -> Any:
    """Jinja's environment with the functions that the templates call."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("rag.eval"),
        autoescape=lambda name: not (name or "").endswith(".css"),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"percent": percent, "with_interval": with_interval, "milliseconds": _milliseconds}
    environment.globals |= {
        "describe": describe,
        "stages": STAGES,
        "strip": lambda share: round(5 + 150 * min(max(share, 0.0), 1.0), 1),
        "largest_n": partial(_largest_n, evaluations),
        "read_pieces": read_pieces,
        "answer_pieces": answer_pieces,
    }
    return environment


def _milliseconds(value: float) -> str:
    return format_seconds(value / 1000)


def _largest_n(evaluations: Sequence[Evaluation], figure: str) -> int:
    found = [e.metrics["figures"][figure]["n"] for e in evaluations if figure in e.metrics["figures"]]
    return max(found)


def _the_only(names: Sequence[str], otherwise: str) -> str:
    return names[0] if len(set(names)) == 1 else otherwise


def _chips(metrics: Mapping[str, Any]) -> list[str]:
    n = metrics["n"]
    return [
        f"{n:,} question{'s' if n != 1 else ''}",
        f"split: {metrics['question_set']['split'] or 'not marked'}",
        f"profile: {metrics['profile']}",
        f"{100 * metrics['settings']['level']:g} % bootstrap intervals",
        f"finished {metrics['finished'][:10]}",
    ]


def _summary(evaluation: Evaluation) -> dict[str, str]:
    figures = evaluation.metrics["figures"]
    names = main_figures(figures, 20)
    tops = [name for name in names if name.startswith("top")]
    read = figures.get("gold_span_em")
    summary = [f"{with_interval(figures['em'])} answered exactly right"] if "em" in figures else []
    if read is not None and read["value"] is not None:
        settings = evaluation.metrics["settings"]
        count = settings.get("read_top_k", settings.get("read"))  # the name of older results first
        summary.append(f"an answer stood in the {count} passages that were read for {with_interval(read)}")
    elif tops:
        summary.append(
            f"an answer stands in the first {tops[-1][3:]} passages for {with_interval(figures[tops[-1]])}"
        )
    elif not summary and names:
        summary.append(f"{describe(names[0])[0]} {with_interval(figures[names[0]])}")
    system = system_name(evaluation.metrics)
    return {"name": evaluation.name, "summary": "; ".join(summary), "system": system}


def _tiles(metrics: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    figures = metrics["figures"]
    tiles = [
        (
            percent(figures[name]["value"]),
            describe(name)[0],
            f"{100 * figures[name]['low']:.1f}–{100 * figures[name]['high']:.1f}",
        )
        for name in main_figures(figures)
    ]
    if metrics["calibration"]:
        tiles.append((percent(metrics["calibration"]["ece"]), "Calibration error", "mean gap of confidence"))
    if metrics["latency_ms"]:
        total = metrics["latency_ms"]["total"]
        note = f"95 % within {_milliseconds(total['p95'])}"
        tiles.append((_milliseconds(total["p50"]), "Median time", note))
    return tiles


def _breakdowns(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """One table per breakdown: for one system two figures, for several the first of them side by side."""
    tables: list[dict[str, Any]] = []
    for name, rows in evaluations[0].metrics["breakdowns"].items():
        if len(rows) < 2:
            continue
        is_alone = len(evaluations) == 1 and name != "gold rank"  # which decides the other figure by itself
        shown = _shown(rows[0]["figures"])[: 2 if is_alone else 1]
        by_system = [
            {row["group"]: row["figures"] for row in e.metrics["breakdowns"].get(name, [])}
            for e in evaluations
        ]
        titles = [describe(figure)[0] for figure in shown]
        tables.append(
            {
                "title": describe_group(name),
                "heads": [f"{e.name}: {titles[0]}" for e in evaluations] if len(evaluations) > 1 else titles,
                "rows": [
                    (
                        row["group"],
                        row["n"],
                        [
                            (number, groups.get(row["group"], {}).get(figure))
                            for number, groups in enumerate(by_system)
                            for figure in shown
                        ],
                    )
                    for row in rows
                ],
            }
        )
    return tables


def _shown(figures: Mapping[str, Any]) -> list[str]:
    answer = "em" if "em" in figures else None
    others = ("joint_f1", "r_precision", "path_em@1", "passage_em@2", "top1", "top5", "top20", "f1")
    other = next((name for name in others if name in figures), None)
    return [name for name in (answer, other) if name is not None] or list(figures)[:1]


def _has_no_span(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all yes/no questions were missed, as an extractive reader without answer types does."""
    exact = [row["figures"].get("em") or {} for row in rows if row["group"] == "yes/no" and len(rows) > 1]
    return any(figure.get("value") == 0.0 for figure in exact)


def _flips(evaluations: Sequence[Evaluation], compared: Sequence[Comparison]) -> list[dict[str, Any]]:
    """For every pair of systems, the questions that only one of them gets right."""
    shown: list[dict[str, Any]] = []
    by_name = {evaluation.name: evaluation for evaluation in evaluations}
    figures = {row.figure for row in compared}
    chosen = next((name for name in ("em", "top20", "top5", "top1") if name in figures), None)
    for row in compared:
        if row.figure != chosen:
            continue
        ids = [*row.gained[:_FLIPS], *row.lost[:_FLIPS]]
        of_a, of_b = (pick_records(by_name[name].records(), ids) for name in (row.a, row.b))
        for verb, keys, count in (
            ("gained", row.gained[:_FLIPS], row.result.wins),
            ("lost", row.lost[:_FLIPS], row.result.losses),
        ):
            if keys:
                noun = "question" if count == 1 else "questions"
                more = f", {len(keys)} shown" if count > len(keys) else ""
                cards = [(of_b[key], (row.a, of_a[key])) for key in keys]
                shown.append({"name": f"{row.b} {verb} {count:,} {noun}{more}", "cards": cards})
    return shown


def worst_records(records: Iterable[Record], limit: int) -> list[Record]:
    """The most confident wrong answers; without a reader, the questions whose answer was retrieved at the
    lowest rank or not at all.

    Questions without accepted answers are never shown, as nothing shows that they went wrong.
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


def marked(text: str, spans: Sequence[tuple[int, int, str]], *, limit: int = 700) -> Pieces:
    """Text with highlighted spans, cut to about `limit` characters around the first one.

    Args:
        spans: (start, end, class) in characters; a span that overlaps an earlier one is left out.

    Example:
        >>> marked("in the Black Forest.", [(7, 19, "read")])
        [('in the ', ''), ('Black Forest', 'read'), ('.', '')]
    """
    kept: list[tuple[int, int, str]] = []
    for start, end, kind in sorted(spans):
        if 0 <= start < end <= len(text) and (not kept or start >= kept[-1][1]):
            kept.append((start, end, kind))
    first, last = 0, len(text)
    if len(text) > limit:
        middle = kept[0][0] if kept else 0
        first = max(0, min(middle - limit // 3, len(text) - limit))
        last = first + limit
        kept = [span for span in kept if span[0] >= first and span[1] <= last]
    pieces: Pieces = [("… ", "")] if first else []
    position = first
    for start, end, kind in kept:
        pieces += [(text[position:start], ""), (text[start:end], kind)]
        position = end
    pieces.append((text[position:last], ""))
    return [*pieces, (" …", "")] if last < len(text) else pieces


def read_pieces(evidence: Mapping[str, Any]) -> Pieces:
    """The evidence passage of an answer, with the answer highlighted where it occurs."""
    start, end = evidence["start"], evidence["end"]
    return marked(evidence["text"], [] if start is None else [(start, end, "read")])


def answer_pieces(text: str, answers: Sequence[str]) -> Pieces:
    """A passage with the first mention of each accepted answer highlighted."""
    lowered = text.lower()
    if len(lowered) != len(text):  # lower-casing lengthens a few characters: then nothing is highlighted
        return marked(text, [])
    found = [(lowered.find(answer.lower()), len(answer)) for answer in answers if answer.strip()]
    return marked(text, [(start, start + size, "gold") for start, size in found if start >= 0])
