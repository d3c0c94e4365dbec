"""Sources of a corpus: files, folders, data sets."""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from rag.core.errors import ConfigError, DataError
from rag.core.manifest import is_index
from rag.data.files.fields import DocumentFields, listed_names
from rag.data.files.named import is_named
from rag.data.files.rows import read_rows
from rag.data.formats import (
    CORPUS_FORMATS,
    DOCUMENTS,
    RECORD_FORMATS,
    find_in_folder,
    head_of,
    is_text,
    kind_by_name,
    open_binary,
    record_format,
    record_format_by_name,
    strip_compression,
)
from rag.data.records import BadRecord, CorpusOptions, ReadReport

_ALSO_DOCUMENTS = ("csv", "tsv", "json")  # records in a folder of data, one table among documents
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
IGNORE_FILE = ".ragignore"  # in a folder: patterns of what is left out of it
_ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar")
_LEFT_OUT = (
    "excluded",
    "hidden or generated",
    "links to files that are read",
    "links that lead nowhere",
    "linked folders",
)
_WIKI_FILE = re.compile(r"wiki_\d+$")


@dataclass(frozen=True, slots=True)
class Source:
    """One file or data set to read.

    Attributes:
        path: where it is; "hf:…" or "irds:…" for a data set.
        name: name in messages and generated ids: path relative to the given folder, or the file
            name; with the folder's name in front if more was given, and the folders above if
            several share a name.
    """

    path: str
    format: str
    name: str


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
    report = report if report is not None else ReadReport()
    if not inputs:
        raise ConfigError(
            "no corpus was given", hint="name at least one file, folder or hf:owner/name"
        )
    if format not in ("auto", *CORPUS_FORMATS):
        raise ConfigError(
            f"unknown corpus format {format!r}",
            hint=f"use auto or one of: {', '.join(CORPUS_FORMATS)}",
        )
    paths = list(map(str, inputs))
    for path in paths:
        if not is_named(path) and not os.path.exists(path):
            raise DataError(
                f"{path}: no such file or folder", hint="check the path, or name hf:…, irds:…"
            )
    labels = _labels([path for path in paths if not is_named(path)])
    sources: list[Source] = []
    for path in paths:
        if is_named(path):
            kind, _, name = path.partition(":")
            sources.append(Source(path, kind, name))
        elif not os.path.isdir(path):
            sources.append(Source(path, _format_alone(path, format), labels[path]))
        elif is_index(Path(path)):
            raise ConfigError(
                f"{path} is an index, not a corpus", hint="give what it was built from"
            )
        else:
            prefix = f"{labels[path]}/" if len(paths) > 1 else ""
            sources += _folder(Path(path), format, report, prefix, bool(text_field), exclude)
    return sources


def _format_alone(path: str, format: str) -> str:
    """The format of a file that was given by itself."""
    likely = _format_of(Path(path), is_alone=True) if format == "auto" else format
    if likely is None and _is_archive(path):
        raise ConfigError(
            f"{path}: archives are not unpacked", hint="unpack it, and give the folder"
        )
    if likely is None:
        raise ConfigError(
            f"{path}: its format cannot be guessed from its name or its first bytes",
            hint=f"say which it is with format: {', '.join(CORPUS_FORMATS)}",
        )
    return likely


def _labels(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each path; where several share it, what is below the folder that all are
    in.
    """
    full = {path: Path(os.path.abspath(path)) for path in paths}
    names = Counter(place.name for place in {*full.values()})
    root = os.path.commonpath([place.parent for place in full.values()]) if full else ""
    return {
        path: place.relative_to(root).as_posix() if names[place.name] > 1 else place.name
        for path, place in full.items()
    }


def _format_of(path: Path, *, is_alone: bool) -> str | None:
    plain = strip_compression(path.name)
    if _WIKI_FILE.search(plain):
        return "jsonl"  # of WikiExtractor's --json, as HotpotQA's abstracts
    if records := record_format_by_name(plain):
        return records
    if kind_by_name(plain):
        return DOCUMENTS
    try:
        with open_binary(path) as stream:
            head = head_of(stream)
    except DataError:
        return DOCUMENTS  # whose conversion says what is wrong
    likely = record_format(head, plain)
    if likely in CORPUS_FORMATS and (
        is_alone or likely != "tsv"
    ):  # a tab alone says little about a text
        return likely
    return DOCUMENTS if is_text(head) or b"%PDF-" in head[:1024] else None


def _folder(
    folder: Path,
    format: str,
    report: ReadReport,
    prefix: str,
    has_text_field: bool,
    exclude: Sequence[str],
) -> list[Source]:
    """The sources of a folder: of BEIR its corpus; files of one format, where it is named; people's
    documents, tables among them; else, where nothing but a README lies beside them, files of
    records.
    """
    corpus = find_in_folder(folder, "corpus.jsonl")
    if format == "auto" and corpus is not None:
        return [Source(str(corpus), "jsonl", corpus.name)]
    format_of = _files(folder, report, exclude)
    kind = format
    if format == "auto":
        documents = [name for name, each in format_of.items() if each == DOCUMENTS]
        has_records = any(each in RECORD_FORMATS for each in format_of.values())
        about_data = all(PurePath(name).stem.lower() in _ABOUT_DATA for name in documents)
        kind = "records" if has_records and about_data else DOCUMENTS
        if kind == "records" and not has_text_field and _are_tables(folder, format_of):
            kind = DOCUMENTS
    several = {DOCUMENTS: (DOCUMENTS, *_ALSO_DOCUMENTS), "records": tuple(RECORD_FORMATS)}
    chosen = sorted(name for name, each in format_of.items() if each in several.get(kind, (kind,)))
    if not chosen:
        expected = "any known format" if format == "auto" else f"format {format!r}"
        raise DataError(
            f"{folder}: no file of {expected} in this folder ({len(format_of)} other files)",
            hint="`rag docs indexing` lists the formats that are read",
        )
    for name in sorted(format_of.keys() - set(chosen)):
        reason = each = format_of[name]
        if each in CORPUS_FORMATS:
            reason = f"{each}, in a folder of {kind}: index it on its own, or give --format {each}"
        report.ignored.append(f"{folder / name} ({reason})")
    if kind == DOCUMENTS:
        format_of = dict.fromkeys(chosen, DOCUMENTS)
    return [Source(str(folder / name), format_of[name], prefix + name) for name in chosen]


def _are_tables(folder: Path, format_of: Mapping[str, str]) -> bool:
    """Whether all records are in tables of which none has a column that is known to hold texts."""
    records = [name for name, each in format_of.items() if each in RECORD_FORMATS]
    has_others = any(format_of[name] not in ("csv", "tsv") for name in records)
    return not has_others and not any(_has_texts(folder / name) for name in records)


def _has_texts(table: Path) -> bool:
    fields = DocumentFields(CorpusOptions(), table.name)
    try:
        for _, number, row in read_rows(str(table), fields.columns):
            fields.document(row, number)
            break
    except DataError:
        return False
    return bool(fields.layout)


def _files(folder: Path, report: ReadReport, exclude: Sequence[str]) -> dict[str, str]:
    """Relative names of the files of a folder, and their formats, or why they have none.

    Hidden and excluded ones are left out, and counted in the report. Links to files are followed
    within the folder only, and a file is read once; an index in the folder is no part of its corpus.
    """

    def note_closed(error: OSError) -> None:
        reason = BadRecord("no permission", "this folder may not be read")
        report.add_bad(str(error.filename), reason, is_file=True)

    is_excluded = _excluder(folder, exclude)
    found = list[Path]()
    left_out: dict[str, list[str]] = {kind: [] for kind in _LEFT_OUT}
    for place, folders, names in os.walk(folder, onerror=note_closed):
        followed = list[str]()
        for path in (Path(place, name) for name in sorted([*folders, *names])):
            name = path.relative_to(folder).as_posix()
            is_folder = path.is_dir()
            if not _is_visible(path.name):
                if name != IGNORE_FILE:
                    left_out["hidden or generated"].append(name)
            elif is_excluded(f"{name}/" if is_folder else name):
                left_out["excluded"].append(name)
            elif is_folder and path.is_symlink():
                left_out["linked folders"].append(name)
            elif is_folder and not is_index(path):
                followed.append(path.name)
            elif path.is_file():
                found.append(path)
            elif path.is_symlink():
                left_out["links that lead nowhere"].append(name)
        folders[:] = followed

    format_of: dict[str, str] = {}
    inside = folder.resolve()
    read = set[Path]()
    for path in sorted(found, key=Path.is_symlink):  # a file by its own name, before links to it
        name = path.relative_to(folder).as_posix()
        target = path.resolve()
        # a link out of the folder may lead to files that nobody wants indexed
        is_foreign = path.is_symlink() and not target.is_relative_to(inside)
        if path.is_symlink() and target in read:
            left_out["links to files that are read"].append(name)
            continue
        read.add(target)
        format = _format_of(path, is_alone=False) or (
            "archives are not unpacked" if _is_archive(path) else "of no known format"
        )
        if format == DOCUMENTS and is_foreign:
            format = "a link that leads out of the folder"
        format_of[name] = format
    for kind, left in left_out.items():
        if left:
            report.ignored.append(f"{folder}: {kind}: {len(left):,} ({listed_names(left)})")
    return format_of


def _excluder(folder: Path, exclude: Sequence[str]) -> Callable[[str], bool]:
    """Whether a relative name, that of a folder with a slash, is left out by a pattern."""
    patterns = list(exclude)
    ignore_file = folder / IGNORE_FILE
    if ignore_file.is_file():
        patterns = [*ignore_file.read_text("utf-8-sig", "replace").splitlines(), *patterns]
    if not patterns:
        return lambda name: False
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(patterns).match_file
    except ValueError as error:
        raise ConfigError(
            f"{folder}: {error}", hint=f"write --exclude and {IGNORE_FILE} as .gitignore"
        ) from error


def _is_archive(path: str | Path) -> bool:
    suffix = PurePath(strip_compression(str(path))).suffix.lower()
    return suffix in _ARCHIVES


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name not in _GENERATED_FOLDERS
