"""Data sets of the Hugging Face Hub by name, streamed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError, DataError, MissingDependencyError, RagError, ResourceError

HF_PREFIX = "hf:"
_UNREACHABLE = {
    *("ConnectionError", "HTTPError", "TimeoutError", "OfflineModeIsEnabled", "ConnectError"),
    "TimeoutException",
}
_USUAL_SPLITS = ("train", "test", "validation", "dev")


def parse_name(name: str) -> tuple[str, str | None, str | None]:
    """Split `hf:owner/name[:config][:split]` into name, configuration and split, None if not given.

    A single extra part is a split if it is one of the usual names (slices such as `train[:100]` are not
    streamed), otherwise a configuration.

    Raises:
        ConfigError: no name, or too many parts.

    Example:
        >>> parse_name("hf:owner/wiki:20231101.en:train"), parse_name("hf:owner/wiki:test")
        (('owner/wiki', '20231101.en', 'train'), ('owner/wiki', None, 'test'))
    """
    parts = name.removeprefix(HF_PREFIX).split(":")
    if not all(parts) or len(parts) > 3:
        raise ConfigError(f"{name!r} does not name a data set", hint="write hf:owner/name[:config][:split]")
    if len(parts) == 3:
        return parts[0], parts[1], parts[2]
    if len(parts) == 2:
        return (parts[0], None, parts[1]) if parts[1] in _USUAL_SPLITS else (parts[0], parts[1], None)
    return parts[0], None, None


def stream_rows(name: str, *, default_split: str | None = None) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows of a data set with their 1-based numbers. Only data files (Parquet, JSON, CSV, …) are read; a data
    set's own code is never run.

    Args:
        name: `hf:owner/name[:config][:split]`; a folder with data files stands for owner/name too.
        default_split: taken if the name has none; if None, the data set's only split is.

    Raises:
        ConfigError: a malformed name, an unknown configuration or split, or several splits and none named.
        DataError: the data set is missing, private, or needs a script.
        ResourceError: the hub cannot be reached.
    """
    place, configuration, split = parse_name(name)
    try:
        import datasets  # takes about a second, and most inputs do not need it

        wanted = split or default_split
        rows: Any = datasets.load_dataset(place, configuration, split=wanted, streaming=True)
        if wanted is None:
            if len(rows) != 1:
                # the one to propose is for measuring, not for training
                proposed = next((s for s in ("validation", "dev", "test") if s in rows), [*rows][-1])
                raise ConfigError(
                    f"{name} has the splits {', '.join(rows)}, and none was named",
                    hint=f"write for example {name}:{proposed}",
                )
            rows = next(iter(rows.values()))
        yield from enumerate(rows, start=1)
    except RagError:
        raise
    except Exception as error:
        raise _explained(name, error) from error


def revision_of(name: str) -> str:
    """The commit a data set's default branch stands at; "" for a local folder. Raises as `stream_rows`."""
    place = parse_name(name)[0]
    if Path(place).exists():
        return ""
    try:
        from huggingface_hub import HfApi

        return HfApi().dataset_info(place).sha or ""
    except Exception as error:
        raise _explained(name, error) from error


def _explained(name: str, error: Exception) -> RagError:
    """Sort the many errors of `datasets` and what lies under it into ours."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, ImportError):
        return MissingDependencyError(
            f"{name}: data sets need the package 'datasets' ({error})", hint="pip install datasets"
        )
    if "scripts are no longer supported" in str(error):
        return DataError(
            f"{name} is a data set with a script, which is never run: {text}",
            hint="use a copy that holds data files, or download it and give its files",
        )
    if kinds & {"DatasetNotFoundError", "RepositoryNotFoundError", "GatedRepoError"}:
        return DataError(
            f"{name}: {text}", hint="check the name; for private data sets log in to the hub first"
        )
    if kinds & _UNREACHABLE:
        return ResourceError(
            f"{name}: the hub cannot be reached ({type(error).__name__}: {text})",
            hint="check the network, or download the data set elsewhere and give its files",
        )
    if isinstance(error, ValueError):
        return ConfigError(f"{name}: {text}", hint="write hf:owner/name[:config][:split]")
    return DataError(f"{name}: {type(error).__name__}: {text}")
