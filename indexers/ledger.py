"""The ledger of a build: which stages are finished, and from which inputs and settings they were made."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rag.core.errors import ArtifactError, DataError, IncompleteArtifactError, MismatchedArtifactError
from rag.core.files import atomic_write_json, fingerprint, read_json
from rag.core.manifest import LEDGER_NAME, MANIFEST_NAME, differences


class StageLedger:
    """Remembers each started stage with its inputs, so that a rerun continues the same build or is refused.

    The file `build.json` holds, for each stage, its inputs and whether it is finished. Its content depends on
    the inputs only: an interrupted and resumed build ends with the same bytes.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / LEDGER_NAME
        self._stages: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            try:
                stages = read_json(self.path)
                if not isinstance(stages, dict) or not all("inputs" in stage for stage in stages.values()):
                    raise DataError(f"{self.path}: not a list of stages")
                self._stages = stages
            except (DataError, TypeError) as error:
                raise ArtifactError(
                    f"{self.path} is damaged: {error}", hint="add --overwrite to start afresh"
                ) from error

    def begun(self, stage: str) -> bool:
        """Whether `stage` was started."""
        return stage in self._stages

    def finished(self, stage: str) -> bool:
        """Whether `stage` is complete."""
        return bool(self._stages.get(stage, {}).get("finished", False))

    def fingerprint(self, stage: str) -> str:
        """Short hash of the inputs of a begun stage."""
        return fingerprint(self._stages[stage]["inputs"])[:16]

    def inputs(self, stage: str) -> dict[str, Any]:
        """The inputs of a begun stage; none of another one."""
        return dict(self._stages[stage]["inputs"]) if self.begun(stage) else {}

    def output(self, stage: str) -> dict[str, Any]:
        """The output that `finish` recorded for a finished stage."""
        return dict(self._stages[stage]["output"])

    def begin(self, stage: str, inputs: Mapping[str, Any]) -> bool:
        """Record the inputs of a stage; returns whether there is work left.

        A stage that was begun and has written no whole file may be begun with other inputs.

        Raises:
            MismatchedArtifactError: the existing files of the stage were made from other inputs.
        """
        known = self._stages.get(stage)
        if known is None or not (known["finished"] or any((self.path.parent / stage).glob("[!.]*"))):
            self._stages[stage] = {"inputs": dict(inputs), "finished": False, "output": {}}
            self._save()
            return True
        if changed := differences(known["inputs"], inputs):
            hint = "continue with the same inputs and settings, choose another --out, or add --overwrite"
            if changed.startswith("source.files: ") and "; " not in changed:
                is_whole = (self.path.parent / MANIFEST_NAME).exists()
                hint = (
                    f"bring it up to date: --update {self.path.parent} in place of --out; or add --overwrite"
                    if is_whole
                    else "it is not finished: give the files that it was begun with, or add --overwrite"
                )
            raise MismatchedArtifactError(
                f"{self.path.parent} holds a build whose stage {stage!r} has other inputs ({changed})",
                hint=hint,
            )
        return not known["finished"]

    def finish(self, stage: str, output: Mapping[str, Any]) -> None:
        """Mark a stage complete."""
        self._stages[stage]["finished"] = True
        self._stages[stage]["output"] = dict(output)
        self._save()

    def _save(self) -> None:
        # While the build changes, the directory must not look complete.
        (self.path.parent / MANIFEST_NAME).unlink(missing_ok=True)
        atomic_write_json(self.path, self._stages)


def read_info(path: Path, check: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Read the JSON file that describes a finished stage; `check` reads the fields that are needed.

    Raises:
        ArtifactError: the file is missing or damaged, or `check` fails on it.
    """
    if not path.is_file():
        raise IncompleteArtifactError(f"{path} is missing", hint="run the stage that builds it")
    try:
        info = dict(read_json(path))
        check(info)
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path} is damaged: {error}", hint="rebuild the index") from error
    return info
