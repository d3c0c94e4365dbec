"""Sources of a corpus (files, folders, globs, "-", data sets), and options for reading them."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from rag.core.errors import ConfigError, DataError
from rag.core.manifest import is_index
from rag.data.choices import CORPUS_FORMATS, FILTER_FIELDS
from rag.data.documents.kinds import is_text, kind_by_name, remedy_by_name
from rag.data.documents.limits import Limits
from rag.data.files.named import is_named
from rag.data.files.rows import (
    COMPRESSED_SUFFIXES,
    STDIN,
    format_of,
    head_of,
    open_binary,
    strip_compression,
)
from rag.data.records import Problem, ReadReport

DOCUMENTS = "documents"  # every file is one document: PDF, Office, HTML, Markdown, text, …
_BY_SUFFIX = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".tsv": "tsv", ".csv": "csv",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
_ALSO_DOCUMENTS = ("csv", "tsv", "json")  # records in a folder of data, one table among documents
_ABOUT_DATA = ("readme", "license", "licence", "copying", "notice", "changelog", "citation", "authors")
_GENERATED_FOLDERS = ("node_modules", "__pycache__", "_static", "_sources")
_WIKI_FILE = re.compile(r"wiki_\d+$")
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a corpus.

    Attributes:
        id_field: name of the field or column with the id; None tries the usual names.
        encoding: encoding of text files; any in which a line ends with the single byte 0x0A.
        max_bad_share: highest tolerated share of bad records, in [0, 1].
        limits: limits on the resources that converting one file may use.
        strict: whether a file that cannot be read stops the reading.
        metadata: fields of records that passages keep, so that filters can name them; a field may also stand
            in an object `metadata`, as in BEIR.

    Raises:
        ConfigError: a value out of range.
    """

    id_field: str | None = None
    title_field: str | None = None
    text_field: str | None = None
    encoding: str = "utf-8"
    max_bad_share: float = 0.01
    limits: Limits = field(default_factory=Limits)
    strict: bool = False
    metadata: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            has_lines = "\n{".encode(self.encoding) == b"\n{"
        except LookupError:
            has_lines = False
        if not has_lines:
            raise ConfigError(
                f"encoding {self.encoding!r} is unknown, or its lines do not end with the byte 0x0A",
                hint="use utf-8, or for example cp1252; convert other files to UTF-8 first",
            )
        if not 0.0 <= self.max_bad_share <= 1.0:
            raise ConfigError(f"max_bad_share is {self.max_bad_share}, expected a share between 0 and 1")
        if taken := sorted({*self.metadata} & {*FILTER_FIELDS}):
            raise ConfigError(
                f"the metadata field {taken[0]!r} has a name that filters reserve",
                hint=f"rename it in the corpus; {' and '.join(FILTER_FIELDS)} can be filtered without it",
            )


@dataclass(frozen=True, slots=True)
class Source:
    """One file, stream or data set to read.

    Attributes:
        path: where it is; "-" for standard input, "hf:…" or "irds:…" for a data set.
        name: name in messages and generated ids: path relative to the given folder, or the file name; with
            the folder's name in front if more was given, and the folders above if several share a name.
    """

    path: str
    format: str
    name: str


def find_sources(
    inputs: Sequence[str | Path], format: str = "auto", report: ReadReport | None = None
) -> list[Source]:
    """List everything to read, in the order given; the files of a folder by relative path.

    Args:
        report: gets the names of files in folders that no reader was chosen for, and the folders that may not
            be read.

    Raises:
        ConfigError: no inputs, an unknown format name, standard input given twice, or a format that cannot be
            told.
        DataError: an input does not exist, matches nothing, or holds nothing readable.
    """
    report = report if report is not None else ReadReport()
    if not inputs:
        raise ConfigError("no corpus was given", hint="name at least one file, folder, '-' or hf:owner/name")
    if format != "auto" and format not in CORPUS_FORMATS:
        raise ConfigError(
            f"unknown corpus format {format!r}", hint=f"use auto or one of: {', '.join(CORPUS_FORMATS)}"
        )
    names = [str(item) for item in inputs]
    if names.count(STDIN) > 1:
        raise ConfigError("standard input ('-') was given more than once")
    paths = [path for name in names for path in _expand(name)]
    labels = _labels(paths)
    sources: list[Source] = []
    for path in paths:
        if path == STDIN:
            if format in ("parquet", "beir", DOCUMENTS):
                raise ConfigError(f"format {format!r} cannot be read from standard input")
            sources.append(Source(STDIN, format, "stdin"))
        elif is_named(path):
            kind, _, name = path.partition(":")
            sources.append(Source(path, kind, name))
        elif os.path.isdir(path):
            if is_index(Path(path)):
                raise ConfigError(f"{path} is an index, not a corpus", hint="give what it was built from")
            prefix = f"{labels[path]}/" if len(paths) > 1 else ""
            sources += _folder(Path(path), format, report, prefix)
        else:
            sources.append(Source(path, _file_format(path, format), labels[path]))
    return sources


def corpus_files(inputs: Sequence[Path]) -> list[Path]:
    """The files of a corpus on this machine, in the order in which they are read.

    Raises:
        DataError: see `find_sources`.
    """
    return [Path(source.path) for source in find_sources(inputs)]


def in_folder(folder: Path, name: str) -> Path | None:
    """The file of this name, or compressed under it, if there is one."""
    return next((p for end in ("", *COMPRESSED_SUFFIXES) if (p := folder / (name + end)).is_file()), None)


def sniff(head: bytes, name: str) -> str:
    """Format of a corpus by its head (see `head_of`).

    Raises:
        ConfigError: nothing known looks like this.
    """
    format = format_of(head, name)
    if format in CORPUS_FORMATS:
        return str(format)
    raise ConfigError(
        f"{name}: its format cannot be guessed from its name or its first bytes ({head[:24]!r})",
        hint=f"say which it is with format: {', '.join(CORPUS_FORMATS)}",
    )


def _labels(paths: Sequence[str]) -> dict[str, str]:
    """Names of files and folders: the last part of each path; of those that share it, what is below the
    folder that all of these are in.
    """
    full = {path: Path(os.path.abspath(path)) for path in paths}
    alike: dict[str, list[Path]] = {}
    for place in dict.fromkeys(full.values()):
        alike.setdefault(place.name, []).append(place)
    labels = {}
    for path, place in full.items():
        rivals = alike[place.name]
        root = Path(os.path.commonpath([rival.parent for rival in rivals]))
        labels[path] = place.name if len(rivals) == 1 else place.relative_to(root).as_posix()
    return labels


def _expand(name: str) -> list[str]:
    if name == STDIN or is_named(name) or os.path.exists(name):
        return [name]
    if glob.has_magic(name):
        if matches := sorted(glob.glob(name, recursive=True)):
            return matches
        raise DataError(f"{name}: no file matches this pattern")
    raise DataError(f"{name}: no such file or folder", hint="data sets by name are hf:owner/name, irds:name")


def _guess(name: str) -> str | None:
    """Format by file name alone."""
    plain = strip_compression(name)
    if _WIKI_FILE.search(plain):
        return "jsonl"  # of WikiExtractor's --json, as HotpotQA's abstracts
    is_document = kind_by_name(plain) is not None or remedy_by_name(plain) is not None
    return _BY_SUFFIX.get(PurePath(plain).suffix.lower()) or (DOCUMENTS if is_document else None)


def _file_format(path: str, format: str) -> str:
    if format == "beir":
        raise ConfigError(f"{path}: format 'beir' is a folder with corpus.jsonl, this is a file")
    guessed = _guess(Path(path).name) if format == "auto" else format
    if guessed not in (None, "json") or format != "auto":
        return guessed or ""
    if not os.path.getsize(path):
        return guessed or "jsonl"
    with open_binary(path) as stream:
        head = head_of(stream)
    return DOCUMENTS if format_of(head, path) is None and is_text(head) else sniff(head, path)


def _folder(folder: Path, format: str, report: ReadReport, prefix: str) -> list[Source]:
    """The sources of a folder: of BEIR its corpus; files of one format, where it is named; people's
    documents, tables among them; else, where nothing but a README lies beside them, files of records.
    """
    corpus = in_folder(folder, "corpus.jsonl")
    if format in ("auto", "beir") and corpus is not None:
        return [Source(str(corpus), "jsonl", corpus.name)]
    files = {} if format == "beir" else _files(folder, report)
    documents = [name for name, kind in files.items() if kind == DOCUMENTS]
    if format == "auto":
        are_documents = any(PurePath(name).stem.lower() not in _ABOUT_DATA for name in documents)
        are_records = any(kind not in (None, DOCUMENTS) for kind in files.values()) and not are_documents
        wanted = "records" if are_records else DOCUMENTS
    else:
        wanted = format
    several = {DOCUMENTS: (DOCUMENTS, *_ALSO_DOCUMENTS), "records": tuple(_BY_SUFFIX.values())}
    kinds = several.get(wanted, (wanted,))
    chosen = sorted(name for name, kind in files.items() if kind in kinds)
    unused = sorted(str(folder / name) for name in files.keys() - set(chosen))
    if not chosen:
        expected = "any known format" if format == "auto" else f"format {format!r}"
        raise DataError(
            f"{folder}: no file of {expected} in this folder ({len(unused)} other files)",
            hint="documents are PDF, Office, ODT, HTML, EPUB, Markdown, text, mail and source code; records "
            f"{', '.join(sorted(_BY_SUFFIX))}, wiki_00 and BEIR's corpus.jsonl; also with .gz, .bz2, …",
        )
    report.ignored += unused
    return [
        Source(path, DOCUMENTS if wanted == DOCUMENTS else _file_format(path, format), prefix + name)
        for name in chosen
        if (path := str(folder / name))
    ]


def _files(folder: Path, report: ReadReport) -> dict[str, str | None]:
    """Relative names of the files of a folder, without hidden ones, and their formats as far as names say.

    Links to documents are followed within the folder only; an index in the folder is no part of its corpus.
    """

    def closed(error: OSError) -> None:
        report.files += 1
        place = str(error.filename)
        report.add_unread(Problem(place, 0, "file", "no permission", "this folder may not be read"))

    files: dict[str, str | None] = {}
    for place, folders, names in os.walk(folder, onerror=closed):
        folders[:] = [
            name for name in sorted(folders) if _is_visible(name) and not is_index(Path(place, name))
        ]
        for path in (Path(place, name) for name in sorted(names) if _is_visible(name)):
            if not path.is_file():
                continue
            guessed = _guess(path.name)
            if guessed is None and _is_document(path):
                guessed = DOCUMENTS
            is_link = guessed == DOCUMENTS and path.is_symlink()
            if is_link and not path.resolve().is_relative_to(folder.resolve()):
                guessed = None  # a link out of the folder may lead to files that nobody wants indexed
            files["/".join(path.relative_to(folder).parts)] = guessed
    return files


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name not in _GENERATED_FOLDERS


def _is_document(path: Path) -> bool:
    """Whether a file's content is text or PDF; True if it may not be read, which its conversion reports."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return True
    return is_text(head) or b"%PDF-" in head[:1024]
