"""Both sides of an exchange, for its tests."""

from pathlib import Path

from rag.training.refresh.generations import Generation, Generations
from rag.training.refresh.refresher import Refresher


def shelves(out: Path) -> tuple[Generations, Generations]:
    """Snapshots, and what is made of them."""
    return Generations(out / "snapshots"), Generations(out / "index")


def publish(generations: Generations, *, step: int, key: str = "toy") -> Generation:
    """A snapshot or a result that somebody else made."""
    return generations.publish(lambda folder: (folder / "file").touch(), step=step, meta={"key": key})


class Quick(Refresher):
    """Publishes at once; remembers what each result followed on."""

    def build(self, snapshot: Generation, before: Generation | None, folder: Path) -> None:
        (folder / "turn.txt").write_text(f"{self.turn(before)} after {before and before.version}")
