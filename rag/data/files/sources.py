"""Sources of a corpus: files, folders, data sets."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from rag.core.errors import ConfigError, DataError
from rag.core.manifest import is_index
from rag.core.types import Groups
from rag.data.files.fields import DocumentFields, listed_names
from rag.data.files.named import is_named
from rag.data.files.rows import read_rows
from rag.data.formats import (
    CORPUS_FORMATS,
    DOCUMENTS,
    RECORD_FORMATS,
    find_in_folder,
    format_of_file,
    strip_compression,
)
from rag.data.metadata import groups_of
from rag.data.records import BadRecord, CorpusOptions, ReadReport

# Records in a folder of data, but a table or a document among documents.
_ALSO_DOCUMENTS = ("csv", "tsv", "json")
# The formats that are read of a folder of records, or of documents.
_ACCEPTED = {"records": RECORD_FORMATS, DOCUMENTS: (DOCUMENTS, *_ALSO_DOCUMENTS)}
_ABOUT_DATA = (
    "readme",
    "license",
    "licence",
    "copying",
    "notice",
    "changelog",
    "citation",
    "authors",
)
_GENERATED_FOLDERS = ("node_modules", "__pycache__", "_static", "_sources")
# In a folder: patterns of what is left out of it.
_IGNORE_FILE = ".ragignore"
# In a folder: the groups that may read what is in it and below, a group on every line.
_RIGHTS_FILE = ".rights"
_ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar")


@dataclass(frozen=True, slots=True)
class Source:
    """One file or data set to read.

    Attributes:
        path: where it is; "hf:…" or "irds:…" for a data set.
        name: name in messages and generated ids: path relative to the given folder, or the file
            name; with the folder's name in front if more was given, and the folders above if
            several share a name.
        groups: who may read it, as the nearest file `.rights` says: in its folder, or in one above
            within the folder that was given; None: nothing is said.
        is_in_folder: whether it was found in a folder, not given by itself.
    """

    path: str
    format: str
    name: str
    groups: Groups | None = None
    is_in_folder: bool = False


def find_sources(
    inputs: Sequence[str | Path],
    format: str = "auto",
    report: ReadReport | None = None,
    *,
    text_field: str = "",
    exclude: Sequence[str] = (),
) -> list[Source]:
    """List everything to read, in the order given; the files of a folder by relative path.

    What is left out of folders, and folders that may not be read, are named in the report.

    Args:
        text_field: the column with the texts of records; without it, a folder of nothing but tables
            in which no column is known to hold texts is one of documents.
        exclude: patterns of what is left out of folders, see `CorpusOptions`.

    Raises:
        ConfigError: no inputs, an unknown format name, a format that cannot be told, or a pattern
            that is none.
        DataError: an input does not exist, or holds nothing readable.
    """
    if not inputs:
        raise ConfigError(
            "no corpus was given", hint="name at least one file, folder or hf:owner/name"
        )
    if format not in ("auto", *CORPUS_FORMATS):
        raise ConfigError(
            f"unknown corpus format {format!r}",
            hint=f"use auto or one of: {', '.join(CORPUS_FORMATS)}",
        )
    paths = [str(path) for path in inputs]
    files = [path for path in paths if not is_named(path)]
    for path in files:
        if not os.path.exists(path):
            raise DataError(
                f"{path}: no such file or folder", hint="check the path, or name hf:…, irds:…"
            )
    labels = _labels(files)
    sources: list[Source] = []
    for path in paths:
        if is_named(path):
            kind, _, name = path.partition(":")
            sources.append(Source(path, kind, name))
        elif os.path.isdir(path):
            prefix = f"{labels[path]}/" if len(paths) > 1 else ""
            folder = _Folder(Path(path), exclude, report or ReadReport())
            sources += folder.sources(format, prefix, has_text_field=bool(text_field))
        else:
            groups = groups_of_folder(Path(path).parent)
            sources.append(Source(path, _format_of_input(path, format), labels[path], groups))
    return sources


def _labels(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each path; where several share it, what is below the folder that all are
    in.
    """
    absolute = {path: Path(os.path.abspath(path)) for path in paths}
    folders = [full.parent for full in absolute.values()]
    counts = Counter(full.name for full in set(absolute.values()))
    labels = {}
    for path, full in absolute.items():
        labels[path] = full.name
        if counts[full.name] > 1:
            labels[path] = full.relative_to(os.path.commonpath(folders)).as_posix()
    return labels


def _format_of_input(path: str, format: str) -> str:
    """The format of a file that was given by itself."""
    if format != "auto":
        return format
    likely = format_of_file(Path(path), is_alone=True)
    if likely is not None:
        return likely
    if _is_archive(path):
        raise ConfigError(
            f"{path}: archives are not unpacked", hint="unpack it, and give the folder"
        )
    raise ConfigError(
        f"{path}: its format cannot be guessed from its name or its first bytes",
        hint=f"say which it is with format: {', '.join(CORPUS_FORMATS)}",
    )


class _Folder:
    """Finds what is to be read in a folder; what is not goes into the report."""

    def __init__(self, folder: Path, exclude: Sequence[str], report: ReadReport) -> None:
        if is_index(folder):
            raise ConfigError(
                f"{folder} is an index, not a corpus", hint="give what it was built from"
            )
        self._folder = folder
        self._report = report
        self._is_excluded = _excluder(folder, exclude)
        # Names by the reason why they are left out.
        self._left_out: defaultdict[str, list[str]] = defaultdict(list)

    def sources(self, format: str, prefix: str, *, has_text_field: bool) -> list[Source]:
        """The sources, whose names begin with `prefix`.

        Of BEIR that is the corpus; of a named format all such files; else people's documents,
        tables among them, or, where nothing but a README lies beside them, files of records.
        """
        corpus = find_in_folder(self._folder, "corpus.jsonl")
        if format == "auto" and corpus is not None:
            return [Source(str(corpus), "jsonl", corpus.name, self._groups_of(corpus))]
        formats = self._formats()
        kind = format
        if format == "auto":
            kind = "records" if self._holds_records(formats, has_text_field) else DOCUMENTS
        sources = []
        for name, file_format in sorted(formats.items()):
            path = self._folder / name
            if file_format in _ACCEPTED.get(kind, (kind,)):
                read_as = DOCUMENTS if kind == DOCUMENTS else file_format
                groups = self._groups_of(path)
                sources.append(Source(str(path), read_as, prefix + name, groups, is_in_folder=True))
                continue
            reason = file_format
            if file_format in CORPUS_FORMATS:
                remedy = f"index it on its own, or give the format {file_format}"
                reason = f"{file_format}, in a folder of {kind}: {remedy}"
            self._report.ignored.append(f"{path} ({reason})")
        if not sources:
            expected = "any known format" if format == "auto" else f"format {format!r}"
            raise DataError(
                f"{self._folder}: no file of {expected} in this folder ({len(formats)} other files)",
                hint="`rag docs indexing` lists the formats that are read",
            )
        return sources

    def _groups_of(self, file: Path) -> Groups | None:
        """The groups that the nearest folder states."""
        for folder in file.parents:
            groups = groups_of_folder(folder)
            if groups is not None or folder == self._folder:
                return groups
        return None

    def _holds_records(self, formats: Mapping[str, str], has_text_field: bool) -> bool:
        """Whether the folder holds records, not documents with tables among them."""
        records = []
        for name, format in formats.items():
            if format in RECORD_FORMATS:
                records.append(name)
            elif format == DOCUMENTS and PurePath(name).stem.lower() not in _ABOUT_DATA:
                return False
        if has_text_field or any(formats[name] not in _ALSO_DOCUMENTS for name in records):
            return bool(records)
        return any(_has_texts(self._folder / name) for name in records)

    def _formats(self) -> dict[str, str]:
        """Relative names of the files, and their formats, or why they have none.

        Links to files are followed within the folder only, and a file is read once.
        """
        formats: dict[str, str] = {}
        root = self._folder.resolve()
        read = set[Path]()
        # A file comes by its own name, before links to it.
        for path in sorted(self._walk(), key=Path.is_symlink):
            name = path.relative_to(self._folder).as_posix()
            target = path.resolve()
            if path.is_symlink() and target in read:
                self._left_out["links to files that are read"].append(name)
                continue
            read.add(target)
            format = format_of_file(path, is_alone=False)
            if format is None and _is_archive(path.name):
                format = "archives are not unpacked"
            # A link out of the folder may lead to files that nobody wants indexed.
            elif format == DOCUMENTS and path.is_symlink() and not target.is_relative_to(root):
                format = "a link that leads out of the folder"
            formats[name] = format or "of no known format"
        for reason, names in sorted(self._left_out.items()):
            self._report.ignored.append(
                f"{self._folder}: {reason}: {len(names):,} ({listed_names(names)})"
            )
        return formats

    def _walk(self) -> list[Path]:
        """The files below the folder, without those that are left out.

        An index in the folder is no part of its corpus.
        """

        def note_closed(error: OSError) -> None:
            reason = BadRecord("no permission", "this folder may not be read")
            self._report.add_bad(str(error.filename), reason, is_file=True)

        files: list[Path] = []
        for folder, subfolders, names in os.walk(self._folder, onerror=note_closed):
            entries = [Path(folder, name) for name in sorted([*subfolders, *names])]
            subfolders.clear()
            for path in entries:
                if path == self._folder / _IGNORE_FILE or path.name == _RIGHTS_FILE:
                    continue
                reason = self._why_left_out(path)
                if reason:
                    self._left_out[reason].append(path.relative_to(self._folder).as_posix())
                elif path.is_file():
                    files.append(path)
                elif path.is_dir() and not is_index(path):
                    subfolders.append(path.name)
        return files

    def _why_left_out(self, path: Path) -> str:
        name = path.relative_to(self._folder).as_posix()
        is_folder = path.is_dir()
        if path.name.startswith(".") or path.name in _GENERATED_FOLDERS:
            return "hidden or generated"
        if self._is_excluded(f"{name}/" if is_folder else name):
            return "excluded"
        if path.is_symlink() and is_folder:
            return "linked folders"
        if path.is_symlink() and not path.exists():
            return "links that lead nowhere"
        return ""


def _has_texts(file: Path) -> bool:
    """Whether a field of a file's first record is known to hold texts."""
    fields = DocumentFields(CorpusOptions(), file.name)
    try:
        for _, number, row in read_rows(str(file), fields.columns):
            fields.documents(row, number)
            break
    except DataError:
        return False
    return bool(fields.layout)


def _excluder(folder: Path, exclude: Sequence[str]) -> Callable[[str], bool]:
    """Whether a relative name, that of a folder with a slash, is left out by a pattern."""
    patterns = list(exclude)
    ignore_file = folder / _IGNORE_FILE
    if ignore_file.is_file():
        patterns = [*ignore_file.read_text("utf-8-sig", "replace").splitlines(), *patterns]
    if not patterns:
        return lambda name: False
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(patterns).match_file
    except ValueError as error:
        raise ConfigError(
            f"{folder}: {error}", hint="patterns of what is left out are written as in .gitignore"
        ) from error


def groups_of_folder(folder: Path) -> Groups | None:
    """The groups that the file `.rights` in a folder names; None if there is no such file.

    Raises:
        DataError: it cannot be read, or names no group.
    """
    path = folder / _RIGHTS_FILE
    if not os.path.lexists(path):
        return None
    try:
        lines = map(str.strip, path.read_text("utf-8-sig").splitlines())
        return groups_of([line for line in lines if line and not line.startswith("#")])
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} does not say who may read its folder: {error}",
            hint="write a group on each line; nothing was indexed",
        ) from error


def _is_archive(path: str) -> bool:
    return PurePath(strip_compression(path)).suffix.lower() in _ARCHIVES
