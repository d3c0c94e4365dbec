"""False negatives of a batch: passages that are, or hold, an answer to a question they were not drawn for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from retrievers.training.data import TrainingSet

__all__ = ["answer_mask", "same_passage_mask"]

Int64 = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_MULTIPLIER = 0x9E3779B97F4A7C15  # odd: its powers modulo 2^64 never vanish


def same_passage_mask(data: TrainingSet, examples: Int64, rows: Int64) -> BoolArray:
    """Which passages are one of a question's positives, by title and text.

    Args:
        data: the training set.
        examples: (B,) questions.
        rows: (P,) passages.

    Returns:
        (B, P) bool.
    """
    positives, owners = data.positives.gather(examples)
    contents, column = np.unique(data.canonical[rows], return_inverse=True)  # (U,), (P,)
    wanted = data.canonical[positives]
    place = np.minimum(np.searchsorted(contents, wanted), len(contents) - 1)
    found = contents[place] == wanted
    is_positive = np.zeros((len(examples), len(contents)), bool)
    is_positive[owners[found], place[found]] = True
    return is_positive[:, column]


def answer_mask(data: TrainingSet, examples: Int64, rows: Int64) -> BoolArray:
    """Which passages hold an answer of a question; the rule is `AnswerMatcher`'s "tokens".

    All windows of all passages are looked up at once, for one answer length after the other.

    Args:
        data: the training set.
        examples: (B,) questions.
        rows: (P,) passages.

    Returns:
        (B, P) bool; all False where the set was built without words.
    """
    mask = np.zeros((len(examples), len(rows)), bool)
    answers, asking = data.question_answers.gather(examples)  # (A,) each
    words, passage = data.words.gather(rows)  # (T,) each
    lengths = data.answers.lengths[answers]
    keys = np.zeros(len(words), np.uint64)
    weight = 1
    for length in range(1, int(lengths.max(initial=0)) + 1):
        windows = len(words) - length + 1
        if windows < 1:
            break
        keys = keys[:windows] + (words[length - 1 :].astype(np.uint64) + np.uint64(1)) * np.uint64(weight)
        chosen = np.flatnonzero(lengths == length)
        if len(chosen):
            needles = data.answers.gather(answers[chosen].astype(np.int64))[0].reshape(-1, length)
            unique, which = np.unique(needles, axis=0, return_inverse=True)
            holds = np.zeros((len(unique), len(rows)), bool)
            found, start = _occurrences(keys, words, unique)
            inside = passage[start] == passage[start + length - 1]
            holds[found[inside], passage[start[inside]]] = True
            answer, place = np.nonzero(holds[which.reshape(-1)])
            mask[asking[chosen[answer]], place] = True
        weight = weight * _MULTIPLIER % 2**64
    return mask


def _occurrences(
    keys: npt.NDArray[np.uint64], words: npt.NDArray[np.int32], needles: npt.NDArray[np.int32]
) -> tuple[Int64, Int64]:
    """Where `needles` (n, L) stand in `words`: for each occurrence its needle and its first word."""
    length = needles.shape[1]
    weights = np.array([pow(_MULTIPLIER, i, 2**64) for i in range(length)], np.uint64)
    needle_keys = ((needles.astype(np.uint64) + np.uint64(1)) * weights).sum(axis=1, dtype=np.uint64)
    order = np.argsort(needle_keys)
    ordered = needle_keys[order]
    place = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    start = np.flatnonzero(ordered[place] == keys)
    found = order[place[start]]
    windows = words[start[:, None] + np.arange(length)]  # (H, L)
    equal = (windows == needles[found]).all(axis=1)  # keys may collide, words do not
    return found[equal], start[equal]
