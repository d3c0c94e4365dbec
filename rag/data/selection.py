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
    given: Sequence[Item] | None = None,
) -> tuple[list[Item], list[Item]]:
    """Divide `items` into training and held-out ones, each in their order.

    Args:
        count: number of groups to hold out, or their share if it is below 1; 0 holds nothing out. A count
            above half of the groups becomes a fifth of them, and a share gives `least_held_out` at least.
        group: returns an item's text, such as the question or the article's title; items with equal texts are
            not separated.
        given: held-out items to use instead; items with the same text are left out of training.

    Raises:
        DataError: nothing would be left to learn from.

    Example:
        >>> kept, held_out = hold_out(["a", "b", "c", "d", "a"], 2, seed=0, group=str)
        >>> sorted({*kept, *held_out}), set(kept) & set(held_out)
        (['a', 'b', 'c', 'd'], set())
    """
    groups = [group(item) for item in items]
    if given is not None:
        chosen = {group(item) for item in given}
    else:
        places = sorted((place_of(text, seed), text) for text in set(groups))
        number = _number_held_out(count, len(places))
        if number and number >= len(places):
            raise DataError(
                f"{number} of {len(places)} questions or articles are to be held out: none is left to learn",
                hint="give more questions, or hold fewer out",
            )
        chosen = {text for _, text in places[:number]}
    pairs = list(zip(items, groups, strict=True))
    held_out = [item for item, text in pairs if text in chosen] if given is None else list(given)
    return [item for item, text in pairs if text not in chosen], held_out


def least_held_out(groups: int) -> int:
    """The fewest groups that a share holds out: 20, but no more than a tenth.

    Example:
        >>> [least_held_out(groups) for groups in (5, 60, 300)]
        [1, 6, 20]
    """
    return max(1, min(20, groups // 10))


def _number_held_out(count: float, groups: int) -> int:
    if count < 1:
        return max(round(count * groups), least_held_out(groups)) if count else 0
    number, fifth = int(count), groups // 5
    if number <= groups // 2 or not fifth:
        return number
    message = "%d of %d questions or articles were to be held out, only a fifth is: %d"
    get_logger(__name__).warning(message, number, groups, fifth)
    return fifth


def check_usable(usable: int, looked_at: int, what: str, *, hint: str, few: float = 0.5) -> float:
    """The share of a sample that a recipe can train on; logs a warning if it is below `few`.

    Args:
        usable: number of usable items among those `looked_at`.
        what: the kind of items and what makes them usable: "passages have a sentence to take".
        hint: what to do if none is usable.

    Raises:
        DataError: none is.
    """
    outcome = f"of a sample of {looked_at:,}, {usable:,} {what}"
    if not usable:
        raise DataError(f"{outcome}: there is nothing to train on", hint=hint)
    if usable < few * looked_at:
        get_logger(__name__).warning("%s; the others are left out", outcome)
    return usable / looked_at
