"""Data sets of the Hugging Face Hub by name, streamed."""

from __future__ import annotations

from rag.core.errors import ConfigError, DataError, MissingDependencyError, RagError, ResourceError
from rag.data.formats.base import ReadOptions, Records, Source
from rag.data.formats.fields import DocumentFields

__all__ = ["HF_PREFIX", "parse_name", "read_huggingface"]

HF_PREFIX = "hf:"
_USUAL_SPLITS = ("train", "test", "validation", "dev")


def parse_name(name: str) -> tuple[str, str | None, str]:
    """Split `hf:owner/name[:config][:split]` into name, configuration and split ("train" if none is given).

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
        return (parts[0], None, parts[1]) if parts[1] in _USUAL_SPLITS else (parts[0], parts[1], "train")
    return parts[0], None, "train"


def read_huggingface(source: Source, options: ReadOptions) -> Records:
    """Positions are 1-based row numbers. Only data files are read; a data set's own code is never run.

    Raises:
        ConfigError: a malformed name, an unknown configuration or split.
        DataError: the data set is missing, private, or needs a script.
        ResourceError: the hub cannot be reached.
        MissingDependencyError: the package `datasets` is not installed.
    """
    name, configuration, split = parse_name(source.path)
    try:
        import datasets  # takes about a second, and most corpora do not need it
    except ImportError as error:
        raise MissingDependencyError(
            f"{source.path}: data sets need the package 'datasets' ({error})", hint="pip install datasets"
        ) from error
    fields = DocumentFields(options, source.name)
    try:
        rows = datasets.load_dataset(name, configuration, split=split, streaming=True)
        for position, row in enumerate(rows, start=1):
            yield position, fields.document(row, position)
    except RagError:
        raise
    except Exception as error:
        raise _explained(source.path, error) from error


def _explained(name: str, error: Exception) -> RagError:
    """Sort the many errors of `datasets` and what lies under it into ours."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "scripts are no longer supported" in str(error):
        return DataError(
            f"{name} is a data set with a script, which is never run: {text}",
            hint="use a copy that holds data files, or download it and give its files",
        )
    if kinds & {"DatasetNotFoundError", "RepositoryNotFoundError", "GatedRepoError"}:
        return DataError(
            f"{name}: {text}", hint="check the name; for private data sets log in to the hub first"
        )
    if kinds & {
        "ConnectionError",
        "HTTPError",
        "TimeoutError",
        "OfflineModeIsEnabled",
        "ConnectError",
        "TimeoutException",
    }:
        return ResourceError(
            f"{name}: the hub cannot be reached ({type(error).__name__}: {text})",
            hint="check the network, or download the data set elsewhere and give its files",
        )
    if kinds & {"ValueError"}:
        return ConfigError(f"{name}: {text}", hint="write hf:owner/name[:config][:split]")
    return DataError(f"{name}: {type(error).__name__}: {text}")
