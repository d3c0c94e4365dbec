"""The figures of an evaluation: what they are called, and how many passages they look at.

Quick to import, so that a command's help can show the settings that depend on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of an evaluation.

    Attributes:
        name: its name in files; in the table, "#" stands for any cut-off.
        title: what people call it.
        note: what it says, in a few words.
        depth: the lowest rank that it looks at; 0: no ranking; None: all passages that were
            retrieved.
    """

    name: str
    title: str
    note: str = ""
    depth: int | None = 0


_TABLE = (
    Figure("em", "Exact match", "first answer equals an accepted one after normalisation"),
    Figure("f1", "Token F1", "word overlap of the first answer with the best accepted one"),
    Figure(
        "shown_em",
        "Exact match as shown",
        "what people see: nothing where “no answer” is shown, else a span, list or sentence",
    ),
    Figure("shown_f1", "Token F1 as shown", "the same, by word overlap"),
    Figure("prec", "Answer precision", "share of predicted words that are right"),
    Figure("recall", "Answer recall", "share of accepted words that are predicted"),
    Figure("sp_em", "Supporting facts EM", "the set of supporting sentences is exactly right"),
    Figure("sp_f1", "Supporting facts F1", "overlap of supporting sentences"),
    Figure("joint_em", "Joint EM", "answer and supporting facts both exactly right"),
    Figure("joint_f1", "Joint F1", "answer and supporting facts together"),
    Figure("label_accuracy", "Label accuracy", "the verdict is the label of the claim"),
    Figure("macro_f1", "Macro-F1 of labels", "the mean of the F1 of each label"),
    Figure("fever_score", "FEVER score", "the verdict is right, and its evidence complete"),
    Figure("evidence_precision", "Evidence precision", "share of found sentences that are gold"),
    Figure("evidence_recall", "Evidence recall", "one set of gold sentences was found"),
    Figure("accuracy", "Strict accuracy", "equal without normalisation"),
    Figure("kilt_em", "KILT EM", "exact match, counted only with perfect evidence"),
    Figure("kilt_f1", "KILT F1", "F1, counted only with perfect evidence"),
    Figure("kilt_accuracy", "KILT accuracy", "strict accuracy, counted only with perfect evidence"),
    Figure("r_precision", "R-precision", "gold pages among the first R pages"),
    Figure("n_best_em", "Any of the n best", "one of all answers returned is right"),
    Figure(
        "answered",
        "Answered",
        "an answer is shown, as likely or perhaps right, and not “no answer”",
    ),
    Figure(
        "citation_recall",
        "Citation recall",
        "share of a reply's sentences that the passages which they cite support",
    ),
    Figure(
        "citation_precision",
        "Citation precision",
        "share of a reply's citations that support their sentence and are needed for it",
    ),
    Figure(
        "gold_span_em",
        "Ceiling of reading",
        "an accepted answer stands in the passages that were read",
    ),
    Figure(
        "mrr",
        "Reciprocal rank of the answer",
        "1 / rank of the first passage that holds an answer",
        depth=None,
    ),
    Figure("RR", "Reciprocal rank of the gold", "1 / rank of the first gold passage", depth=None),
    Figure("AP", "Average precision", "over gold passages", depth=None),
    Figure("top#", "Answer in top #", "an accepted answer stands in one of the first # passages"),
    Figure("R@#", "Gold recall at #", "share of gold passages among the first #"),
    Figure(
        "recall@#",
        "Evidence recall at #",
        "share of evidence sets complete among the first # pages",
    ),
    Figure("nDCG@#", "nDCG at #", "graded ranking quality of the first #"),
    Figure(
        "passage_em@#", "All gold passages in top #", "every passage that is needed was retrieved"
    ),
    Figure("passage_any@#", "Any gold passage in top #", "at least one of them was retrieved"),
    Figure("passage_recall@#", "Share of gold passages in top #", "of multi-hop questions"),
    Figure(
        "path_em@#",
        "Right path in top #",
        "one of the first # paths is exactly the gold passages",
    ),
    Figure(
        "path_cover@#",
        "All gold passages in # paths",
        "every passage that is needed is in one of them",
    ),
    Figure("hop1_recall@#", "First gold passage in # paths", "in the order of the question set"),
    Figure("hop2_recall@#", "Second gold passage in # paths", "in the order of the question set"),
)
_BY_NAME = {figure.name: figure for figure in _TABLE}

MAIN_FIGURES = (
    "label_accuracy",
    "macro_f1",
    "fever_score",
    "evidence_precision",
    "evidence_recall",
    "em",
    "f1",
    "sp_f1",
    "joint_f1",
    "citation_recall",
    "citation_precision",
    "kilt_em",
    "r_precision",
    "top1",
    "top5",
    "top20",
    "top100",
    "mrr",
    "path_em@1",
    "path_cover@20",
    "passage_em@2",
    "passage_em@20",
    "passage_em@100",
    "nDCG@10",
    "RR",
    "R@5",
    "R@20",
    "R@100",
)
"""The figures that come first, the most telling at the top."""

GROUP_FIGURES = (
    "label_accuracy",
    "macro_f1",
    "fever_score",
    "em",
    "f1",
    "sp_f1",
    "joint_f1",
    "r_precision",
    "top1",
    "top5",
    "top20",
    "answered",
)
"""The figures that are shown for each group of questions."""


def find_figure(name: str) -> Figure:
    """The figure of this name; a figure that is not in the table has its name as title.

    >>> find_figure("top5").title, find_figure("top5").depth, find_figure("RR").depth
    ('Answer in top 5', 5, None)
    """
    match = re.fullmatch(r"(.*@|top)(\d+)", name)
    if match is None:
        return _BY_NAME.get(name, Figure(name, name))
    stem, cut_off = match.groups()
    depth = int(cut_off)
    figure = _BY_NAME.get(f"{stem}#")
    if figure is None:
        return Figure(name, name, depth=depth)
    note = figure.note
    if depth == 1:
        note = note.replace("one of the first # passages", "the first passage")
    title = figure.title.replace("#", cut_off)
    return replace(figure, name=name, title=title, note=note.replace("#", cut_off), depth=depth)


def main_figures(names: Iterable[str]) -> list[str]:
    """The figures among `names` that come first, the most telling at the top."""
    present = set(names)
    return [name for name in MAIN_FIGURES if name in present]
