"""Verdicts on claims with the evidence of their sets, beside claim and evidence alone.

    python -m rag.bench.verdicts claims/dev-a.jsonl.gz --claim-only RUN/verifier --evidence-only RUN/verifier

A claim is judged among the labels of its set: of two labels the likelier one, where "not supported"
is the sum of refuted and not enough. The baselines are verifiers trained with `parts=claim` and
`parts=evidence`. "Exchanged": how often a claim is supported by the evidence of another claim.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from cyclopts import run

from rag.core.types import VERDICT_LABELS, Claim, VerdictLabel
from rag.data.claims import read_claims
from rag.eval.claims import label_choices, likeliest, set_of
from rag.metrics.calibration import measure_calibration
from rag.metrics.claims import macro_f1
from rag.metrics.significance import Interval, bootstrap
from rag.runtime.seeds import generator
from readers.protocols import Verifier
from readers.verifying.open import load_verifier

Probabilities = Sequence[Mapping[VerdictLabel, float]]


def judge(verifier: Verifier, claims: Sequence[Claim]) -> Probabilities:
    """The probabilities of each claim by its evidence."""
    verdicts = verifier.judge(
        [claim.text for claim in claims], [claim.evidence for claim in claims]
    )
    return [verdict.probabilities for verdict in verdicts]


def judge_part(verifier: Verifier, claims: Sequence[Claim], part: str) -> Probabilities:
    """The probabilities by a baseline, which reads the claims or the evidence alone."""
    texts = [""] * len(claims)
    evidence = [""] * len(claims)
    if part == "claim":
        texts = [claim.text for claim in claims]
    else:
        evidence = [" ".join(claim.evidence) for claim in claims]
    rows = verifier.probabilities(texts, evidence)
    return [dict(zip(VERDICT_LABELS, row, strict=True)) for row in rows.tolist()]


def share_of_exchanged(verifier: Verifier, claims: Sequence[Claim]) -> Interval:
    """The share of claims that another claim's evidence supports."""
    order = generator(5).permutation(len(claims)).tolist()
    others = [claims[number].evidence for number in np.roll(order, 1)]
    verdicts = verifier.judge([claims[number].text for number in order], others)
    supported = []
    for number, other, verdict in zip(order, others, verdicts, strict=True):
        if claims[number].evidence != other:
            supported.append(float(verdict.label == "supported"))
    return bootstrap(supported)


def figures(claims: Sequence[Claim], probabilities: Probabilities) -> list[str]:
    """Cells of the table: number of claims, accuracy, macro-F1, and calibration error."""
    choices = label_choices(claims)
    labels = [str(claim.label) for claim in claims]
    predicted = []
    confidences = []
    for claim, shares in zip(claims, probabilities, strict=True):
        label, confidence = likeliest(shares, choices[set_of(claim)])
        predicted.append(label)
        confidences.append(confidence)
    right = [float(label == guess) for label, guess in zip(labels, predicted, strict=True)]
    calibration = measure_calibration(confidences, right)
    assert calibration is not None, "there are claims"
    return [
        str(len(claims)),
        _percent(bootstrap(right)),
        _percent(macro_f1(labels, predicted)),
        format(calibration["ece"], ".3f"),
    ]


def _percent(figure: Interval) -> str:
    return format(figure.times(100), ".1f")


def main(
    file: Path,
    /,
    *,
    verifier: Path | None = None,
    claim_only: Path | None = None,
    evidence_only: Path | None = None,
    precision: str = "auto",
) -> None:
    """Print the table.

    Args:
        file: Claims with their evidence.
        verifier: Folder of a verifier; default: the one in the package.
        claim_only: Folder of a baseline that reads claims alone.
        evidence_only: Folder of a baseline that reads evidence alone.
        precision: Number format of the verifier.
    """
    judged = load_verifier(verifier, precision=precision)
    folders = {"claim": claim_only, "evidence": evidence_only}
    baselines = {part: load_verifier(folder) for part, folder in folders.items() if folder}
    sets: dict[str, list[Claim]] = {}
    for claim in read_claims(file):
        sets.setdefault(set_of(claim), []).append(claim)
    names = [f"{part} alone, macro-F1" for part in baselines]
    _print_row("set", "n", "accuracy", "macro-F1", "ECE", *names, "exchanged")
    _print_row(*["---"] * (6 + len(names)))
    everything: list[Claim] = []
    pooled: list[Mapping[VerdictLabel, float]] = []
    for name, claims in sets.items():
        probabilities = judge(judged, claims)
        cells = figures(claims, probabilities)
        for part, baseline in baselines.items():
            cells.append(figures(claims, judge_part(baseline, claims, part))[2])
        _print_row(name, *cells, _percent(share_of_exchanged(judged, claims)))
        everything += claims
        pooled += probabilities
    _print_row("all", *figures(everything, pooled), *["–"] * (len(names) + 1))


def _print_row(*cells: str) -> None:
    print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    run(main)
