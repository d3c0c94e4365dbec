"""A self-contained HTML page about an evaluation, or several side by side."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from itertools import chain
from operator import itemgetter

from rag.core.errors import MissingDependencyError
from rag.core.optional import require
from rag.eval.compare import compare_evaluations, depth_of
from rag.eval.figures import find_figure, main_figures
from rag.eval.records import QuestionRecord
from rag.eval.results import Evaluation, percent, with_interval
from rag.eval.scoring import STAGES

_Points = list[tuple[float, float]]
# Questions shown for each system.
_WORST = 20


def render_report(evaluations: Sequence[Evaluation]) -> str:
    """The page as a string: no script, no external resource, every text escaped.

    Args:
        evaluations: one, or several over the same questions; the others are compared with the
            first.

    Raises:
        MismatchedArtifactError: their question sets differ.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("rag.eval"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"percent": percent, "with_interval": with_interval}
    environment.globals |= {"find_figure": find_figure, "stages": STAGES}
    least_depth = min(map(depth_of, evaluations))
    names = dict.fromkeys(
        chain.from_iterable(evaluation.metrics["figures"] for evaluation in evaluations)
    )
    figures = [name for name in names if (find_figure(name).depth or 0) <= least_depth]
    main = main_figures(figures)
    worst = [
        (evaluation.name, worst_records(evaluation.records(), _WORST)) for evaluation in evaluations
    ]
    return environment.get_template("report.html").render(
        evaluations=evaluations,
        first=evaluations[0].metrics,
        figures=[*main, *(name for name in figures if name not in main)],
        compared=compare_evaluations(evaluations) if len(evaluations) > 1 else [],
        plots=draw_plots(evaluations),
        worst=[(name, records) for name, records in worst if records],
    )


def draw_plots(evaluations: Sequence[Evaluation]) -> list[str]:
    """Two plots as SVG: answers over retrieved passages, and correctness over confidence; those
    that there are figures for, and none without matplotlib.
    """
    try:
        require("matplotlib", extra="report")
    except MissingDependencyError:
        return []
    curves: dict[str, _Points] = {}
    bins: dict[str, _Points] = {}
    for evaluation in evaluations:
        curve = evaluation.metrics["curve"]
        calibration = evaluation.metrics["calibration"]
        if curve:
            curves[evaluation.name] = list(map(itemgetter("k", "value"), curve))
        if calibration:
            points = map(itemgetter("confidence", "accuracy"), calibration["bins"])
            bins[evaluation.name] = list(points)
    plots = []
    if curves:
        plots.append(_plot(curves, "Questions with an answer in the first k passages", "log"))
    if bins:
        plots.append(_plot(bins, "Right answers, by confidence (dashed: ideal)", "linear"))
    return plots


def _plot(lines: Mapping[str, _Points], title: str, scale: str) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker=".", label=name)
    if scale == "linear":
        axes.plot([0, 1], [0, 1], linestyle="--", color="gray")
    axes.set(title=title, xscale=scale, ylim=(0, 1.02))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    if len(lines) > 1:
        axes.legend()
    out = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    _, tag, rest = out.getvalue().partition("<svg")
    return tag + rest


def worst_records(records: Iterable[QuestionRecord], limit: int) -> list[QuestionRecord]:
    """The most confident wrong answers; without a reader, the questions whose answer was retrieved
    at the lowest rank or not at all.

    Questions without accepted answers are never shown, as nothing shows that they went wrong.
    """

    ranked = []
    for order, record in enumerate(records):
        em = record.scores.get("em")
        if em is not None:
            if em != 1.0:
                ranked.append((record.confidence or 0.0, -order, record))
        elif record.scores.get("mrr") is not None and record.first_rank != 1:
            ranked.append((record.first_rank or 1e6, -order, record))
    worst = heapq.nlargest(limit, ranked, key=lambda item: item[:2])
    return [record for _, _, record in worst]
