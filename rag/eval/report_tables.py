"""The tables of the report: figures with intervals, kinds of questions, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rag.core.progress import format_duration
from rag.eval.markup import Child, Html, el, join
from rag.eval.plots import interval_strip
from rag.eval.report_labels import describe, describe_group, main_figures, ordered, with_interval
from rag.eval.results import Evaluation

__all__ = ["breakdowns_section", "figures_section", "latency_section", "milliseconds", "table"]

_FOLDED_FROM = 16  # more figures than this: the main ones, and the rest on request
_LATENCIES = ("p50", "p90", "p95", "p99", "mean", "max")
_NO_SPAN = (
    "Questions answered by yes or no: a reader that quotes its answer from a passage cannot say either, so "
    "it gets none of them."
)


def table(head: Sequence[Child], rows: Sequence[Sequence[Child]], kind: str | None = None) -> Html:
    """A table whose first column names the rows; cells that are not `td` already become one, and a column of
    numbers has its heading on the right."""

    def cell(value: Child) -> Html:
        return value if isinstance(value, Html) and value.startswith("<td") else el("td", value)

    first = list(rows[0]) if rows else []
    numeric = [isinstance(v, Html) and v.startswith('<td class="num') for v in first]
    numeric += [False] * (len(head) - len(numeric))
    return el(
        "div",
        el(
            "table",
            el(
                "thead",
                el(
                    "tr",
                    [
                        el("th", name, scope="col", class_="num" if right else None)
                        for name, right in zip(head, numeric, strict=False)
                    ],
                ),
            ),
            el(
                "tbody", [el("tr", el("th", row[0], scope="row"), [cell(v) for v in row[1:]]) for row in rows]
            ),
            class_=kind,
        ),
        class_="scroll",
    )


def _figure_cell(figure: Mapping[str, Any] | None, number: int = 0) -> Html:
    if not figure or figure["value"] is None:
        return el("td", "–", class_="soft")
    strip = interval_strip(figure["value"], figure["low"], figure["high"], number)
    return el("td", el("span", with_interval(figure), class_="nowrap"), strip)


def figures_section(evaluations: Sequence[Evaluation]) -> Html:
    """All figures; if there are many, the main ones first and the others folded."""
    names = ordered(name for e in evaluations for name in e.metrics["figures"])
    if len(names) < _FOLDED_FROM:
        return _figures(evaluations, names)
    common = {name: True for e in evaluations for name in e.metrics["figures"]}
    main = ordered(main_figures(common, limit=10))
    rest = [name for name in names if name not in main]
    more = el("details", el("summary", f"{len(rest)} more figures"), _figures(evaluations, rest))
    return join([_figures(evaluations, main), more])


def _figures(evaluations: Sequence[Evaluation], names: Sequence[str]) -> Html:
    rows: list[list[Child]] = []
    for name in names:
        title, note = describe(name)
        cells: list[Child] = [join([title, el("small", note)])]
        cells += [
            _figure_cell(e.metrics["figures"].get(name), number) for number, e in enumerate(evaluations)
        ]
        counts = {e.metrics["figures"][name]["n"] for e in evaluations if name in e.metrics["figures"]}
        rows.append([*cells, el("td", f"{max(counts):,}", class_="num", title="questions")])
    systems = [e.name for e in evaluations] if len(evaluations) > 1 else ["value and interval"]
    return table(["", *systems, "questions"], rows, "stacked" if len(evaluations) == 1 else None)


def breakdowns_section(evaluations: Sequence[Evaluation]) -> Html | None:
    """One table a breakdown: for one system two figures, for several the first of them side by side."""
    tables: list[Html] = []
    no_span = False
    for name, rows in evaluations[0].metrics["breakdowns"].items():
        if len(rows) < 2:
            continue
        is_alone = len(evaluations) == 1 and name != "gold rank"  # which decides the other figure by itself
        shown = _shown(rows[0]["figures"])[: 2 if is_alone else 1]
        by_system = [
            {row["group"]: row["figures"] for row in e.metrics["breakdowns"].get(name, [])}
            for e in evaluations
        ]
        cells: list[list[Child]] = []
        for row in rows:
            figures = [
                _figure_cell(groups.get(row["group"], {}).get(figure), number)
                for number, groups in enumerate(by_system)
                for figure in shown
            ]
            cells.append([row["group"], el("td", f"{row['n']:,}", class_="num"), *figures])
            exact = row["figures"].get("em") or {}
            no_span |= name == "answer type" and row["group"] == "yes/no" and exact.get("value") == 0.0
        titles = [describe(figure)[0] for figure in shown]
        heads = [f"{e.name}: {titles[0]}" for e in evaluations] if len(evaluations) > 1 else titles
        tables.append(el("div", el("h3", describe_group(name)), table(["", "n", *heads], cells)))
    if not tables:
        return None
    note = el("p", _NO_SPAN, class_="soft") if no_span else None
    return join([note, el("div", tables, class_="grid2")])


def _shown(figures: Mapping[str, Any]) -> list[str]:
    answer = next((name for name in ("em",) if name in figures), None)
    other = next(
        (
            name
            for name in ("joint_f1", "r_precision", "path_em@1", "top1", "top5", "top20", "f1")
            if name in figures
        ),
        None,
    )
    return [name for name in (answer, other) if name is not None] or list(figures)[:1]


def latency_section(evaluations: Sequence[Evaluation]) -> Html | None:
    """Milliseconds a question by stage."""
    rows: list[list[Child]] = []
    for evaluation in evaluations:
        for stage, values in evaluation.metrics["latency_ms"].items():
            name = f"{evaluation.name}: {stage}" if len(evaluations) > 1 else stage
            rows.append([name, *(el("td", milliseconds(values[k]), class_="num") for k in _LATENCIES)])
    if not rows:
        return None
    settings = evaluations[0].metrics["settings"]
    asked = ", ".join(
        (f"{e.name} " if len(evaluations) > 1 else "") + format_duration(e.metrics["wall_s"]["asking"])
        for e in evaluations
    )
    note = (
        f"Wall time a question, asked in batches of {settings['batch_size']} (a batch's time divided by its "
        f"size). The last run took {asked}."
    )
    head = ["stage", "median", *_LATENCIES[1:]]
    return join([el("p", note, class_="soft"), table(head, rows)])


def milliseconds(value: float) -> str:
    """A duration with its unit: "812 ms", "1.99 s"."""
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.3g} ms"
