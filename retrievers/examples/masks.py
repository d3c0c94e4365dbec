"""False negatives of a batch: passages that are, or hold, an answer to a question they were not drawn for."""

import numpy as np

from rag.core.arrays import Bool, Int32, Int64, UInt64
from rag.core.ragged import ranges
from retrievers.examples.data import TrainingArrays

_MULTIPLIER = 0x9E3779B97F4A7C15  # odd: its powers modulo 2^64 never vanish
_LOOKED_UP = 8  # words of an answer that are hashed to find it; longer answers are then compared in full


def false_negatives(data: TrainingArrays, examples: Int64, rows: Int64, positives: Int64) -> Bool:
    """(B, P) bool: passages that are no negatives of a question, because they are one of its positives
    or contain one of its answers; False in `positives` (B,), the column of its own positive, -1 if none."""
    mask = positive_mask(data, examples, rows) | answer_mask(data, examples, rows)
    known = np.flatnonzero(positives >= 0)
    mask[known, positives[known]] = False
    return mask


def positive_mask(data: TrainingArrays, examples: Int64, rows: Int64) -> Bool:
    """(B, P) bool: whether passage `rows` (P,) is a positive of the question, compared by title and text."""
    positives, owners = data.positives.gather(examples)
    contents, column = np.unique(data.canonical[rows], return_inverse=True)  # (U,), (P,)
    wanted = data.canonical[positives]
    place = np.minimum(np.searchsorted(contents, wanted), len(contents) - 1)
    found = contents[place] == wanted
    is_positive = np.zeros((len(examples), len(contents)), bool)
    is_positive[owners[found], place[found]] = True
    return is_positive[:, column]


def answer_mask(data: TrainingArrays, examples: Int64, rows: Int64) -> Bool:
    """Which passages hold an answer of a question; the rule is `AnswerMatcher`'s "tokens".

    For each answer length, all windows of all passages are looked up at once by their first words; candidates
    are then compared word by word.

    Args:
        examples: (B,) questions.
        rows: (P,) passages.

    Returns:
        (B, P) bool; all False where the set was built without words.
    """
    mask = np.zeros((len(examples), len(rows)), bool)
    numbers, owners = data.question_answers.gather(examples)  # (A,) each
    words, passage = data.words.gather(rows)  # (T,) each
    sought, _ = data.answers.gather(numbers.astype(np.int64))
    lengths = data.answers.lengths[numbers]
    first = np.cumsum(lengths) - lengths
    looked_up = np.minimum(lengths, _LOOKED_UP)
    keys = np.zeros(len(words), np.uint64)  # hashes of the windows
    answer_keys = np.zeros(len(numbers), np.uint64)
    weight = 1
    for length in range(1, min(int(looked_up.max(initial=0)), len(words)) + 1):
        keys = keys[: len(words) - length + 1] + _weighted(words[length - 1 :], weight)
        longer = np.flatnonzero(looked_up >= length)
        answer_keys[longer] += _weighted(sought[first[longer] + length - 1], weight)
        answers = np.flatnonzero(looked_up == length)
        start, found = _equal_keys(keys, answer_keys[answers])
        found = answers[found]
        last = start + lengths[found] - 1
        inside = last < len(words)
        inside[inside] = passage[start[inside]] == passage[last[inside]]
        start, found = start[inside], found[inside]
        same = _equal_runs(words, start, sought, first[found], lengths[found])
        mask[owners[found[same]], passage[start[same]]] = True
        weight = weight * _MULTIPLIER % 2**64
    return mask


def _weighted(words: Int32, weight: int) -> UInt64:
    return (words.astype(np.uint64) + np.uint64(1)) * np.uint64(weight)


def _equal_keys(keys: UInt64, wanted: UInt64) -> tuple[Int64, Int64]:
    """All pairs of a position in `keys` and one in `wanted` that hold the same number."""
    order = np.argsort(wanted)
    ordered = wanted[order]
    left = np.searchsorted(ordered, keys, "left")
    counts = np.searchsorted(ordered, keys, "right") - left
    start = np.repeat(np.arange(len(keys)), counts)
    return start, order[ranges(left, counts)]


def _equal_runs(one: Int32, starts: Int64, other: Int32, others: Int64, lengths: Int64) -> Bool:
    """For each run whether `one` from its start equals `other` from its own, over its length."""
    run = np.repeat(np.arange(len(lengths)), lengths)
    differs = one[ranges(starts, lengths)] != other[ranges(others, lengths)]
    return np.asarray(np.bincount(run[differs], minlength=len(lengths)) == 0)
