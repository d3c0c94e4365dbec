"""The promises that are stored beside an index, about answers and about verdicts on claims: what they
change, and when they are void.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from rag.answering import Outcome
from rag.config import Config
from rag.core.arrays import Float64
from rag.core.errors import ArtifactError, DataError
from rag.core.files import atomic_write_json, read_json
from rag.core.types import Promise, Verdict

_QUANTILES = (0.05, 0.95)
# Live confidences are compared with those that the promise was fitted on: the last 200, by Fisher's
# exact test, which says by chance once in a thousand looks that they differ. There is a look at every
# question, but looks at nearly the same 200 mostly agree.
_WINDOW = 200
_LEVEL = 0.001


class StoredPromise(Config):
    """The content of `promise.json`, or `promise-verdicts.json`, in an index directory.

    Attributes:
        low, high: the range of confidences that it was fitted on, from the 5 % to the 95 % quantile.
        n_outside: how many of the n confidences lie outside this range.
        conditions: index, model and options that it was fitted under, see `Pipeline.conditions`.
    """

    format_version: Literal[1] = 1
    promise: Promise
    low: float
    high: float
    n_outside: int
    conditions: dict[str, Any]

    @classmethod
    def of(
        cls, promise: Promise, confidences: Float64, conditions: Mapping[str, object]
    ) -> StoredPromise:
        """A promise with the confidences (n,) and the conditions that it was fitted on."""
        low, high = np.quantile(confidences, _QUANTILES).tolist()
        return cls(
            promise=promise,
            low=low,
            high=high,
            n_outside=int(((confidences < low) | (confidences > high)).sum()),
            conditions=_as_stored(conditions),
        )

    def write(self, path: Path) -> None:
        """Store the promise atomically, in place of an earlier one."""
        atomic_write_json(path, self.model_dump(mode="json"))


class PromiseKeeper:
    """Withholds answers and verdicts that a promise does not cover, and says where it does not hold.

    Thread safety: any thread may call any method.
    """

    def __init__(self, stored: StoredPromise) -> None:
        self._stored = stored
        self._lock = threading.Lock()
        # Whether each of the last confidences lies outside the fitted range.
        self._is_outside = deque[bool](maxlen=_WINDOW)

    @classmethod
    def open(cls, path: Path) -> PromiseKeeper | None:
        """The keeper of a stored promise; None if there is no such file.

        Raises:
            ArtifactError: the file is damaged.
        """
        if not path.exists():
            return None
        try:
            return cls(StoredPromise.model_validate(read_json(path)))
        except (DataError, ValidationError) as error:
            raise ArtifactError(
                f"{path} is damaged: {error}",
                hint="fit it again with `rag tune confidence`, or delete it",
            ) from error

    def keep(self, outcome: Outcome, conditions: Mapping[str, object]) -> Outcome:
        """The outcome with the promise about its answer, or with a notice why there is none.

        Lists, sentences for yes or no, and questions that were not searched for are not covered.
        """
        presented = outcome.presented
        if (
            presented is None
            or presented.kind != "answer"
            or presented.failure
            or not outcome.state.searches
        ):
            return outcome
        promise, notice = self._look(presented.confidence, conditions)
        notice = "; ".join(filter(None, (presented.notice, notice)))
        return replace(outcome, presented=replace(presented, promise=promise, notice=notice))

    def keep_verdict(self, verdict: Verdict, conditions: Mapping[str, object]) -> Verdict:
        """The verdict with the promise about it, or with a notice why there is none; one that is not
        sure enough is "not_judged".
        """
        if verdict.label == "not_judged":
            return verdict
        promise, notice = self._look(verdict.confidence, conditions)
        notices = [verdict.notice, notice]
        if promise is not None and verdict.confidence < promise.threshold:
            notices.insert(0, "no verdict is sure enough for what is promised")
            verdict = replace(verdict, label="not_judged", probabilities={})
        return replace(verdict, promise=promise, notice="; ".join(filter(None, notices)))

    def _look(
        self, confidence: float, conditions: Mapping[str, object]
    ) -> tuple[Promise | None, str]:
        """The promise if it holds under these conditions, and a notice if something is amiss."""
        fitted = self._stored.conditions
        asked = _as_stored(conditions)
        # Values may be paths, which clients need not see.
        changed = [name for name in fitted | asked if fitted.get(name) != asked.get(name)]
        if not changed:
            return self._stored.promise, self._watch(confidence)
        names = ", ".join(name.removeprefix("has_") for name in sorted(changed))
        return (
            None,
            f"no error rate is promised: the promise was fitted with other values of {names}",
        )

    def _watch(self, confidence: float) -> str:
        """A notice if the last confidences leave the fitted range more often than those that the
        promise was fitted on.
        """
        from scipy.stats import hypergeom

        stored = self._stored
        with self._lock:
            self._is_outside.append(not stored.low <= confidence <= stored.high)
            n_live = len(self._is_outside)
            n_outside = sum(self._is_outside)
        n_all = stored.promise.n + n_live
        if hypergeom.sf(n_outside - 1, n_all, stored.n_outside + n_outside, n_live) >= _LEVEL:
            return ""
        return (
            f"{n_outside} of the last {n_live} confidences leave the range that the promise was "
            f"fitted on ({stored.low:.2f} to {stored.high:.2f}): fit it again"
        )


def _as_stored(conditions: Mapping[str, object]) -> dict[str, Any]:
    """The conditions as JSON has them: lists in place of tuples."""
    return dict(json.loads(json.dumps(conditions)))
