"""Divide examples into training and held-out ones, and check that enough of them can be used."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from rag.core.errors import DataError
from rag.core.files import hash64
from rag.core.log import get_logger

Item = TypeVar("Item")


def place_of(text: str, seed: int) -> float:
    """Position of a text in [0, 1): uniform over texts, and determined by the seed.

    The lowest positions are held out, so that a text that occurs twice is on one side.
    """
    return hash64(f"{seed}\n{text}".encode("utf-8", "surrogatepass")) / 2**64


def hold_out(
    items: Sequence[Item],
    count: float,
    seed: int,
    group: Callable[[Item], str],
    validation: Sequence[Item] | None = None,
) -> tuple[list[Item], list[Item]]:
    """Divide `items` into training and held-out ones, each in their order.

    Args:
        count: number of groups to hold out, or their share if it is below 1 (but `least_held_out`
            of them); 0 holds nothing out. A count above half of the groups becomes a fifth of them.
        group: returns an item's text, such as the question or the article's title; items with equal
            texts are not separated.
        validation: held-out items to use instead; items with the same text are left out of
            training.

    Raises:
        DataError: nothing would be left to learn from.

    Example:
        >>> train, held_out = hold_out(["a", "b", "c", "d", "a"], 2, seed=0, group=str)
        >>> sorted({*train, *held_out}), set(train) & set(held_out)
        (['a', 'b', 'c', 'd'], set())
    """
    if validation is None:
        texts = sorted(
            {group(item) for item in items}, key=lambda text: (place_of(text, seed), text)
        )
        number = int(count)
        fifth = len(texts) // 5
        if 0 < count < 1:
            number = max(round(count * len(texts)), least_held_out(len(texts)))
        elif fifth and number > len(texts) // 2:
            message = "%d of %d questions or articles were to be held out, only a fifth is: %d"
            get_logger(__name__).warning(message, number, len(texts), fifth)
            number = fifth
        if number and number >= len(texts):
            raise DataError(
                f"{number} of {len(texts)} questions or articles are to be held out: none is left to learn",
                hint="give more questions, or hold fewer out",
            )
        chosen = set(texts[:number])
        validation = [item for item in items if group(item) in chosen]
    else:
        chosen = {group(item) for item in validation}
    return [item for item in items if group(item) not in chosen], list(validation)


def least_held_out(groups: int) -> int:
    """The fewest groups that a share holds out: 20, but no more than a tenth or, of few groups,
    two: a single group could be compared with nothing.
    """
    return max(1, min(groups // 2, max(2, groups // 10), 20))


def check_usable(usable: int, looked_at: int, what: str, *, hint: str, few: float = 0.5) -> float:
    """The share of a sample that a recipe can train on; logs a warning if it is below `few`.

    Args:
        what: the kind of items and what makes them usable: "passages have a sentence to take".
        hint: what to do if none is usable, which is a DataError.
    """
    outcome = f"of a sample of {looked_at:,}, {usable:,} {what}"
    if not usable:
        raise DataError(f"{outcome}: there is nothing to train on", hint=hint)
    if usable < few * looked_at:
        get_logger(__name__).warning("%s; the others are left out", outcome)
    return usable / looked_at
