"""Sources of a corpus (files, folders, globs, "-", data sets), and options for reading them."""

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from rag.core.errors import ConfigError, DataError
from rag.core.manifest import LEDGER_NAME, MANIFEST_NAME
from rag.data.choices import CORPUS_FORMATS, FILTER_FIELDS
from rag.data.documents.kinds import is_man, is_text, kind_by_name, remedy_by_name
from rag.data.documents.limits import Limits
from rag.data.files.huggingface import HF_PREFIX
from rag.data.files.streams import (
    COMPRESSED_SUFFIXES,
    STDIN,
    head_of,
    is_json_lines,
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
_SECTION = re.compile(r"\.[1-9][a-z]*$")  # of manual pages
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a corpus.

    Attributes:
        id_field: name of the field or column with the id; None tries the usual names.
        encoding: encoding of text files; any in which a line ends with the single byte 0x0A.
        max_bad_share: highest tolerated share of bad records, in [0, 1].
        max_document_chars: a longer document counts as bad, because it is rarely one document.
        shown_problems: number of bad records that are kept for display.
        squad_unit: whether a SQuAD file gives one document per "paragraph" or per "article".
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
    max_document_chars: int = 4_000_000
    shown_problems: int = 10
    squad_unit: str = "paragraph"
    limits: Limits = field(default_factory=Limits)
    strict: bool = False
    metadata: tuple[str, ...] = ()

    @property
    def names_fields(self) -> bool:
        """Whether any field is named."""
        return bool(self.id_field or self.title_field or self.text_field)

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
        if self.max_document_chars < 1:
            raise ConfigError(f"max_document_chars is {self.max_document_chars}, expected at least 1")
        if self.squad_unit not in ("paragraph", "article"):
            raise ConfigError(f"squad_unit is {self.squad_unit!r}, expected 'paragraph' or 'article'")
        if taken := sorted({*self.metadata} & {*FILTER_FIELDS}):
            raise ConfigError(
                f"the metadata field {taken[0]!r} has a name that filters reserve",
                hint=f"rename it in the corpus; {' and '.join(FILTER_FIELDS)} can be filtered without it",
            )


@dataclass(frozen=True, slots=True)
class Source:
    """One file, stream or data set to read.

    Attributes:
        path: where it is; "-" for standard input, "hf:…" for a data set.
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
    if not inputs:
        raise ConfigError("no corpus was given", hint="name at least one file, folder, '-' or hf:owner/name")
    if format != "auto" and format not in CORPUS_FORMATS:
        raise ConfigError(
            f"unknown corpus format {format!r}", hint=f"use auto or one of: {', '.join(CORPUS_FORMATS)}"
        )
    names = [str(item) for item in inputs]
    if names.count(STDIN) > 1:
        raise ConfigError("standard input ('-') was given more than once")
    ignored: list[str] = []
    closed: list[str] = []
    paths = [path for name in names for path in _expand(name, format)]
    labels = _labels(paths)
    sources: list[Source] = []
    for path in paths:
        if path == STDIN:
            if format in ("parquet", "beir", "hf"):
                raise ConfigError(f"format {format!r} cannot be read from standard input")
            sources.append(Source(STDIN, format, "stdin"))
        elif path.startswith(HF_PREFIX) or format == "hf":
            name = path.removeprefix(HF_PREFIX)
            sources.append(Source(HF_PREFIX + name, "hf", name))
        elif os.path.isdir(path):
            if _is_index(Path(path)):
                raise ConfigError(f"{path} is an index, not a corpus", hint="give what it was built from")
            prefix = f"{labels[path]}/" if len(paths) > 1 else ""
            sources += _folder(Path(path), format, ignored, closed, prefix)
        else:
            sources.append(Source(path, _file_format(path, format), labels[path]))
    if report is not None:
        report.ignored += ignored
        for folder in closed:
            report.files += 1
            report.add_unread(Problem(folder, 0, "file", "no permission", "this folder may not be read"))
    return sources


def corpus_files(inputs: Sequence[Path]) -> list[Path]:
    """The files of a corpus on this machine, in the order in which they are read.

    Raises:
        DataError: see `find_sources`.
    """
    return [Path(source.path) for source in find_sources(inputs)]


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


def _expand(name: str, format: str) -> list[str]:
    if name == STDIN or format == "hf" or name.startswith(HF_PREFIX) or os.path.exists(name):
        return [name]
    if any(mark in name for mark in "*?["):
        if matches := sorted(glob.glob(name, recursive=True)):
            return matches
        raise DataError(f"{name}: no file matches this pattern")
    raise DataError(f"{name}: no such file or folder", hint="for a Hugging Face data set write hf:owner/name")


def _guess(name: str) -> str | None:
    """Format by file name alone."""
    plain = strip_compression(name)
    if _WIKI_FILE.search(plain):
        return "wikiextractor"
    is_document = kind_by_name(plain) is not None or remedy_by_name(plain) is not None
    return _BY_SUFFIX.get(PurePath(plain).suffix.lower()) or (DOCUMENTS if is_document else None)


def _file_format(path: str, format: str) -> str:
    if format == "beir":
        raise ConfigError(f"{path}: format 'beir' is a folder with corpus.jsonl, this is a file")
    if format != "auto":
        return format
    guessed = _guess(Path(path).name)
    if guessed in (None, "json"):
        if not os.path.getsize(path):
            return guessed or "jsonl"
        with open_binary(path) as stream:
            head = head_of(stream)
        try:
            return sniff_bytes(head, path)
        except ConfigError:
            if not is_text(head):
                raise
        return DOCUMENTS
    return guessed or ""


def _folder(folder: Path, format: str, ignored: list[str], closed: list[str], prefix: str) -> list[Source]:
    if format in ("auto", "beir"):
        if corpus := in_folder(folder, "corpus.jsonl"):
            return [Source(str(corpus), "jsonl", corpus.name)]
        if format == "beir":
            raise DataError(f"{folder}: no corpus.jsonl, so this is not a BEIR folder")
    files = _files(folder, closed)
    if format == "auto":
        is_data = _is_data(files)
        fits = {name: kind for name, kind in files.items() if kind and (kind == DOCUMENTS) is not is_data}
        if not is_data:  # a table among documents is one of them
            fits |= {name: DOCUMENTS for name, kind in files.items() if kind in _ALSO_DOCUMENTS}
    else:
        fits = {name: format for name, kind in files.items() if _fits(kind, format)}
    unused = [str(folder / name) for name in files if name not in fits]
    if not fits:
        expected = "any known format" if format == "auto" else f"format {format!r}"
        raise DataError(
            f"{folder}: no file of {expected} in this folder ({len(unused)} other files)",
            hint="known are PDF, Office, OpenDocument, HTML, EPUB, Markdown, LaTeX, text, e-mail and source "
            f"code as documents; {', '.join(sorted(_BY_SUFFIX))}, wiki_00 as records; also with .gz, .bz2, …",
        )
    ignored += sorted(unused)
    return [
        Source(str(folder / name), _format_in_folder(folder / name, kind, format), prefix + name)
        for name, kind in sorted(fits.items())
    ]


def _format_in_folder(path: Path, kind: str, format: str) -> str:
    return DOCUMENTS if kind == DOCUMENTS else _file_format(str(path), format)


def _files(folder: Path, closed: list[str]) -> dict[str, str | None]:
    """Relative names of the files of a folder, without hidden ones, and their formats as far as names say.

    Links to documents are followed within the folder only; an index in the folder is no part of its corpus.

    Args:
        closed: gets the folders that may not be read.
    """
    found: dict[str, str | None] = {}
    for place, folders, names in os.walk(folder, onerror=lambda error: closed.append(str(error.filename))):
        folders[:] = [
            name for name in sorted(folders) if _is_visible(name) and not _is_index(Path(place, name))
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
            found["/".join(path.relative_to(folder).parts)] = guessed
    return found


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and name not in _GENERATED_FOLDERS


def _is_index(folder: Path) -> bool:
    """Whether a folder holds an index, finished or not: it has one writer's lock, and says what was built."""
    described = (folder / name for name in (MANIFEST_NAME, LEDGER_NAME))
    return (folder / ".lock").is_file() and any(path.is_file() for path in described)


def _is_document(path: Path) -> bool:
    """Whether a file's content is text or PDF, or a manual page if it is compressed; True if it may not be
    read, which its conversion reports.
    """
    if (plain := strip_compression(path.name)) != path.name:
        if not _SECTION.search(plain):
            return False
        try:
            with open_binary(path) as stream:
                return is_man(stream.peek(_HEAD_BYTES)[:_HEAD_BYTES])
        except DataError:
            return True
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return True
    return is_text(head) or b"%PDF-" in head[:1024]


def _is_data(files: Mapping[str, str | None]) -> bool:
    """Whether a folder holds records, beside which a README is no document, or people's documents."""
    names = [name for name, kind in files.items() if kind == DOCUMENTS]
    n_documents = sum(PurePath(name).stem.lower() not in _ABOUT_DATA for name in names)
    records = [kind for kind in files.values() if kind not in (None, DOCUMENTS)]
    n_certain = sum(kind not in _ALSO_DOCUMENTS for kind in records)
    return bool(records) and (not n_documents or n_certain > n_documents)


def in_folder(folder: Path, name: str) -> Path | None:
    """The file of this name, or compressed under it, if there is one."""
    return next((p for end in ("", *COMPRESSED_SUFFIXES) if (p := folder / (name + end)).is_file()), None)


def _fits(guessed: str | None, format: str) -> bool:
    alike = {
        "hotpot": ("wikiextractor", "jsonl"),
        "jsonl": ("jsonl", "wikiextractor"),
        "wikiextractor": ("wikiextractor",),
        DOCUMENTS: (DOCUMENTS, *_ALSO_DOCUMENTS),
    }
    return guessed in alike.get(format, (format,))


def sniff_bytes(head: bytes, name: str) -> str:
    """Format by the head (see `head_of`), which need not be all of the data.

    Raises:
        ConfigError: nothing known looks like this.
    """
    if head.startswith(b"PAR1"):
        return "parquet"
    visible = head.lstrip()
    if visible.startswith(b"["):
        return "json"
    if visible.startswith(b"<doc "):
        return "wikiextractor"
    if visible.startswith(b"{"):
        return "jsonl" if is_json_lines(visible) else "json"
    if b"\x00" not in head and b"\t" in head.partition(b"\n")[0]:
        return "tsv"
    raise ConfigError(
        f"{name}: its format cannot be guessed from its name or its first bytes ({head[:24]!r})",
        hint=f"say which it is with format: {', '.join(CORPUS_FORMATS)}",
    )
