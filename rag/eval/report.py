"""One self-contained HTML page about one evaluation, or several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError
from rag.core.files import atomic_write_text
from rag.eval.compare import Comparison, compare_evaluations
from rag.eval.markup import Child, Html, el, join
from rag.eval.plots import stacked_bar
from rag.eval.predictions import read_records
from rag.eval.report_curves import curves_section
from rag.eval.report_labels import describe, main_figures, percent, system_name, with_interval
from rag.eval.report_questions import pick_records, question_card, worst_records
from rag.eval.report_style import STYLE
from rag.eval.report_tables import breakdowns_section, figures_section, latency_section, milliseconds, table
from rag.eval.results import Evaluation
from rag.eval.scoring import STAGES

__all__ = ["render_report", "write_report"]


def write_report(
    evaluations: Sequence[Evaluation], path: str | Path, *, title: str | None = None, worst: int = 20
) -> None:
    """Write the page; see `render_report`."""
    atomic_write_text(path, render_report(evaluations, title=title, worst=worst))


def render_report(evaluations: Sequence[Evaluation], *, title: str | None = None, worst: int = 20) -> str:
    """The page as a string: no script, no external resource, every text escaped.

    Args:
        evaluations: one, or several over the same questions; the first is what the others are compared with.
        title: heading; made from the question set by default.
        worst: wrong answers to show for each system.

    Raises:
        ConfigError: no evaluation was given.
        MismatchedArtifactError: their question sets differ.
    """
    if not evaluations:
        raise ConfigError("there is no evaluation to report on")
    compared = compare_evaluations(evaluations) if len(evaluations) > 1 else []
    first = evaluations[0].metrics
    heading = title or f"Questions of {first['question_set']['name']}: how well are they answered?"
    sections = [
        ("figures", "Figures", figures_section(evaluations)),
        ("comparison", "Comparison", _comparison(evaluations, compared)),
        ("curves", "Retrieval and confidence", curves_section(evaluations)),
        ("misses", "Where answers are lost", _stages(evaluations)),
        ("groups", "Kinds of questions", breakdowns_section(evaluations)),
        ("time", "Time", latency_section(evaluations)),
        ("flips", "Questions that flipped", _flips(evaluations, compared)),
        ("worst", "Worst questions", _worst(evaluations, worst)),
        ("made", "How this was made", _provenance(evaluations)),
    ]
    present = [(key, name, body) for key, name, body in sections if body is not None]
    body = el(
        "main",
        el("h1", heading),
        _chips(first),
        _summary(evaluations),
        el("nav", [el("a", name, href=f"#{key}") for key, name, _ in present], aria_label="Sections"),
        _tiles(evaluations[0]) if len(evaluations) == 1 else None,
        [el("section", el("h2", name), content, id=key) for key, name, content in present],
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        el(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'",
        ),
        el("title", heading),
        el("style", Html(STYLE)),
    )
    return f"<!doctype html>\n{el('html', head, el('body', body), lang='en')}\n"


def _chips(metrics: Mapping[str, Any]) -> Html:
    questions = metrics["question_set"]
    n = metrics["n"]
    items = [
        f"{n:,} question{'s' if n != 1 else ''}",
        f"split: {questions['split'] or 'not marked'}",
        f"profile: {metrics['profile']}",
        f"{100 * metrics['settings']['level']:g} % bootstrap intervals",
        f"finished {metrics['finished'][:10]}",
    ]
    return el("ul", [el("li", item) for item in items], class_="chips")


def _summary(evaluations: Sequence[Evaluation]) -> list[Html]:
    lines = []
    for evaluation in evaluations:
        figures = evaluation.metrics["figures"]
        names = main_figures(figures, 20)
        tops = [name for name in names if name.startswith("top")]
        read = figures.get("gold_span_em")
        said = [f"{with_interval(figures['em'])} answered exactly right"] if "em" in figures else []
        if read is not None and read["value"] is not None:
            count = evaluation.metrics["settings"]["read_top_k"]
            said.append(f"an answer stood in the {count} passages that were read for {with_interval(read)}")
        elif tops:
            said.append(
                f"an answer stands in the first {tops[-1][3:]} passages for "
                f"{with_interval(figures[tops[-1]])}"
            )
        elif not said and names:
            said.append(f"{describe(names[0])[0]} {with_interval(figures[names[0]])}")
        name = el("b", f"{evaluation.name}: ") if len(evaluations) > 1 else None
        lines.append(el("p", name, "; ".join(said) + ".", class_="lead"))
        lines.append(el("p", system_name(evaluation.metrics), class_="soft"))
    return lines


def _tiles(evaluation: Evaluation) -> Html:
    metrics, tiles = evaluation.metrics, []
    for name in main_figures(metrics["figures"]):
        figure = metrics["figures"][name]
        tiles.append(
            (
                percent(figure["value"]),
                describe(name)[0],
                f"{100 * figure['low']:.1f}–{100 * figure['high']:.1f}",
            )
        )
    if metrics["calibration"]:
        tiles.append((percent(metrics["calibration"]["ece"]), "Calibration error", "mean gap of confidence"))
    if metrics["latency_ms"]:
        total = metrics["latency_ms"]["total"]
        note = f"95 % within {milliseconds(total['p95'])}"
        tiles.append((milliseconds(total["p50"]), "Median time", note))
    return el(
        "div",
        [
            el("div", el("span", name), el("b", value), el("span", note), class_="tile")
            for value, name, note in tiles
        ],
        class_="tiles",
    )


def _comparison(evaluations: Sequence[Evaluation], compared: Sequence[Comparison]) -> Html | None:
    if not compared:
        return None
    many = len({(item.a, item.b) for item in compared}) > 1

    def pair_note(item: Comparison) -> Html | None:
        return el("small", f"{item.b} against {item.a}") if many else None

    rows: list[list[Child]] = []
    for item in compared:
        change, sure = item.result.difference, item.p_holm < 0.05
        style = None if not sure else "better" if change.value > 0 else "worse"
        points = f"{100 * change.value:+.1f} ({100 * change.low:+.1f} … {100 * change.high:+.1f})"
        rows.append(
            [
                join([describe(item.figure)[0], pair_note(item)]),
                el("td", percent(item.value_a), class_="nowrap"),
                el("td", percent(item.value_b), class_="nowrap"),
                el("td", points, class_=f"nowrap {style}" if style else "nowrap"),
                f"{item.result.wins} / {item.result.ties} / {item.result.losses}",
                el(
                    "td",
                    _p(item.p_holm),
                    el("small", f"{item.result.test}, raw {_p(item.result.p_value)}"),
                    class_="nowrap",
                ),
            ]
        )
    note = (
        f"Each system against {evaluations[0].name}, on the same questions. Differences in points "
        "with paired bootstrap "
        "intervals; p-values (exact McNemar for right/wrong figures, paired randomisation otherwise) "
        "are corrected by "
        "Holm over this table. Coloured differences have p < 0.05."
    )
    firsts, seconds = {item.a for item in compared}, {item.b for item in compared}
    first = next(iter(firsts)) if len(firsts) == 1 else "first"
    second = next(iter(seconds)) if len(seconds) == 1 else "second"
    head = ["", first, second, "difference", "better / equal / worse", "p, corrected"]
    return join([el("p", note, class_="soft"), table(head, rows)])


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _stages(evaluations: Sequence[Evaluation]) -> Html | None:
    parts: list[Html] = []
    seen: dict[str, int] = {}
    for evaluation in evaluations:
        stages = evaluation.metrics["stages"]
        if stages:
            heading = el("h3", evaluation.name) if len(evaluations) > 1 else None
            parts.append(el("div", heading, stacked_bar([(s, stages[s], s) for s in STAGES if s in stages])))
            seen |= stages
    if not parts:
        return None
    legend = [
        el("span", el("i", "", class_=f"key {name}"), el("b", name), f": {note}")
        for name, note in STAGES.items()
        if name in seen
    ]
    return join([parts, el("p", legend, class_="legend")])


def _flips(evaluations: Sequence[Evaluation], compared: Sequence[Comparison], limit: int = 8) -> Html | None:
    parts: list[Html] = []
    by_name = {evaluation.name: evaluation for evaluation in evaluations}
    figures = {item.figure for item in compared}
    chosen = "em" if "em" in figures else next((f for f in ("top20", "top5", "top1") if f in figures), None)
    for item in compared:
        if item.figure != chosen or not (item.gained or item.lost):
            continue
        groups = (
            (f"{item.b} gained", item.gained[:limit], item.result.wins),
            (f"{item.b} lost", item.lost[:limit], item.result.losses),
        )
        ids = [key for _, keys, _ in groups for key in keys]
        records_a = pick_records(read_records(by_name[item.a].records_path), ids)
        records_b = pick_records(read_records(by_name[item.b].records_path), ids)
        for name, keys, count in groups:
            if keys:
                noun = "question" if count == 1 else "questions"
                shown = f"{name} {count:,} {noun}" + (f", {len(keys)} shown" if count > len(keys) else "")
                cards = [
                    question_card(records_b[key], [(item.a, records_a[key])], passages=2) for key in keys
                ]
                parts.append(el("div", el("h3", shown), cards))
    return el("div", parts, class_="grid2") if parts else None


def _worst(evaluations: Sequence[Evaluation], limit: int) -> Html | None:
    parts: list[Html] = []
    for evaluation in evaluations:
        records = worst_records(read_records(evaluation.records_path), limit)
        if records:
            heading = el("h3", evaluation.name) if len(evaluations) > 1 else None
            cards = [question_card(record, unfolded=not (parts or n)) for n, record in enumerate(records)]
            parts.append(el("div", heading, cards))
    if not parts:
        return None
    note = join(
        [
            "Wrong answers, the most confident first. Highlighted: ",
            el("mark", "what was read", class_="read"),
            " and ",
            el("mark", "where an accepted answer stands", class_="gold"),
            ".",
        ]
    )
    return join([el("p", note, class_="soft"), parts])


def _provenance(evaluations: Sequence[Evaluation]) -> Html:
    parts: list[Html] = []
    for evaluation in evaluations:
        metrics = evaluation.metrics
        questions = metrics["question_set"]
        named: list[tuple[str, object]] = [
            *((f"system: {key}", value) for key, value in metrics["system"].items()),
            *((f"setting: {key}", value) for key, value in metrics["settings"].items()),
        ]
        split = questions["split"] or "split not marked"
        rows: list[list[Child]] = [
            ["questions", f"{questions['path'] or questions['name']} ({split})"],
            ["sha256", questions["sha256"] or "–"],
        ]
        rows += [[key, str(value)] for key, value in named]
        rows.append(["versions", ", ".join(f"{key} {value}" for key, value in metrics["versions"].items())])
        parts.append(
            el(
                "details",
                el(
                    "summary",
                    evaluation.name if len(evaluations) > 1 else "Command, system, settings, versions",
                ),
                el("pre", metrics["command"] or "no command recorded"),
                table(["", "value"], rows),
            )
        )
    return join(parts)
