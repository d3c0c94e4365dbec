"""Verdicts on claims with the evidence of their sets, beside claim and evidence alone.

    python -m rag.bench.verdicts claims/dev-a.jsonl.gz --claim-only RUN/verifier --evidence-only RUN/verifier

A claim is judged among the labels of its set: of two labels the likelier one, where "not supported"
is the sum of refuted and not enough. The baselines are verifiers trained with `parts=claim` and
`parts=evidence`. "Exchanged": how often a claim is supported by the evidence of another claim.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rag.core.arrays import Float32
from rag.core.types import VERDICT_LABELS, Claim
from rag.data.claims import read_claims
from rag.metrics.calibration import measure_calibration
from rag.metrics.claims import macro_f1
from rag.metrics.significance import Interval, bootstrap
from rag.runtime.seeds import generator
from readers.protocols import Verifier
from readers.verifying.open import load_verifier

Verdicts = list[tuple[str, float]]  # label and its probability, of each claim


def choose(rows: Float32, labels: Sequence[str]) -> Verdicts:
    """The likeliest of a set's labels by probabilities (B, 3) over all labels."""
    names = sorted(set(labels))
    columns = []
    for name in names:
        if name == "not_supported":
            columns.append(rows[:, 1:].sum(1))
        else:
            columns.append(rows[:, VERDICT_LABELS.index(name)])
    table = np.stack(columns, 1)
    shares = table / table.sum(1, keepdims=True).clip(1e-9)
    return [(names[int(row.argmax())], float(row.max())) for row in shares]


def judge(verifier: Verifier, claims: Sequence[Claim], parts: str = "both") -> Verdicts:
    """The verdict on each claim by its evidence, of which a baseline reads one part."""
    texts = ["" if parts == "evidence" else claim.text for claim in claims]
    evidence = [("",) if parts == "claim" else claim.evidence for claim in claims]
    return choose(verifier.probabilities(texts, evidence), _labels(claims))


def share_of_exchanged(verifier: Verifier, claims: Sequence[Claim]) -> list[float]:
    """1 for each claim that is supported by another claim's evidence, else 0."""
    order = generator(5).permutation(len(claims))
    others = [claims[int(place)].evidence for place in np.roll(order, 1)]
    own = [claims[int(place)] for place in order]
    rows = verifier.probabilities([claim.text for claim in own], others)
    supported = rows.argmax(1) == 0
    different = [one.evidence != other for one, other in zip(own, others, strict=True)]
    return supported[different].astype(float).tolist()


def _labels(claims: Sequence[Claim]) -> list[str]:
    return [str(claim.label) for claim in claims]


def _row(name: str, claims: Sequence[Claim], verdicts: Verdicts, more: Sequence[str]) -> list[str]:
    labels = _labels(claims)
    predicted = [label for label, _ in verdicts]
    right = [float(one == other) for one, other in zip(labels, predicted, strict=True)]
    accuracy = bootstrap(right)
    calibration = measure_calibration([share for _, share in verdicts], right)
    ece = calibration["ece"] if calibration else float("nan")
    f1 = macro_f1(labels, predicted)
    return [name, str(len(claims)), _percent(accuracy), _percent(f1), f"{ece:.3f}", *more]


def _percent(figure: Interval) -> str:
    return format(figure.times(100), ".1f")


def main(
    file: Path,
    *,
    verifier: Path | None,
    claim_only: Path | None,
    evidence_only: Path | None,
    precision: str,
) -> None:
    """Print the table."""
    judged = load_verifier(verifier, precision=precision)
    baselines = {"claim": claim_only, "evidence": evidence_only}
    opened = {part: load_verifier(folder) for part, folder in baselines.items() if folder}
    sets: dict[str, list[Claim]] = {}
    for claim in read_claims(file):
        sets.setdefault(str(claim.meta.get("set", file.name)), []).append(claim)
    names = [f"{part} alone, macro-F1" for part in opened]
    print("|", " | ".join(["set", "n", "accuracy", "macro-F1", "ECE", *names, "exchanged"]), "|")
    print("|---" * (6 + len(names)) + "|")
    pooled: Verdicts = []
    everything: list[Claim] = []
    for name, claims in sets.items():
        more = []
        for part, baseline in opened.items():
            guesses = [label for label, _ in judge(baseline, claims, part)]
            more.append(_percent(macro_f1(_labels(claims), guesses)))
        exchanged = bootstrap(share_of_exchanged(judged, claims))
        verdicts = judge(judged, claims)
        print("|", " | ".join(_row(name, claims, verdicts, [*more, _percent(exchanged)])), "|")
        pooled += verdicts
        everything += claims
    blank = ["–"] * (len(opened) + 1)
    print("|", " | ".join(_row("all", everything, pooled, blank)), "|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    for option in ("--verifier", "--claim-only", "--evidence-only"):
        parser.add_argument(option, type=Path)
    parser.add_argument("--precision", default="auto")
    main(**vars(parser.parse_args()))
