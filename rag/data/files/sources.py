"""Sources of a corpus: files, folders, "-", data sets."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from rag.core.errors import ConfigError, DataError
from rag.core.manifest import is_index
from rag.data.documents.kinds import is_text, kind_by_name, remedy_by_name
from rag.data.files import rows as files
from rag.data.files.named import is_named
from rag.data.options import CORPUS_FORMATS
from rag.data.records import BadRecord, ReadReport

DOCUMENTS = "documents"  # every file is one document: PDF, Office, HTML, Markdown, text, …
_ALSO_DOCUMENTS = ("csv", "tsv", "json")  # records in a folder of data, one table among documents
_ABOUT_DATA = ("readme", "license", "licence", "copying", "notice", "changelog", "citation", "authors")
_GENERATED_FOLDERS = ("node_modules", "__pycache__", "_static", "_sources")
_WIKI_FILE = re.compile(r"wiki_\d+$")
_HEAD_BYTES = 1 << 16


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
        DataError: an input does not exist, or holds nothing readable.
    """
    report = report if report is not None else ReadReport()
    if not inputs:
        raise ConfigError("no corpus was given", hint="name at least one file, folder, '-' or hf:owner/name")
    if format not in ("auto", *CORPUS_FORMATS):
        raise ConfigError(
            f"unknown corpus format {format!r}", hint=f"use auto or one of: {', '.join(CORPUS_FORMATS)}"
        )
    paths = list(map(str, inputs))
    for path in paths:
        if path != files.STDIN and not is_named(path) and not os.path.exists(path):
            raise DataError(f"{path}: no such file or folder", hint="check the path, or name hf:…, irds:…")
    if paths.count(files.STDIN) > 1 or (files.STDIN in paths and format in ("parquet", DOCUMENTS)):
        raise ConfigError("standard input ('-') gives JSON, CSV or TSV, and only once")
    labels = _labels([path for path in paths if path != files.STDIN and not is_named(path)])
    sources: list[Source] = []
    for path in paths:
        if path == files.STDIN:
            sources.append(Source(files.STDIN, format, "stdin"))
        elif is_named(path):
            kind, _, name = path.partition(":")
            sources.append(Source(path, kind, name))
        elif not os.path.isdir(path):
            sources.append(Source(path, _file_format(path, format), labels[path]))
        elif is_index(Path(path)):
            raise ConfigError(f"{path} is an index, not a corpus", hint="give what it was built from")
        else:
            prefix = f"{labels[path]}/" if len(paths) > 1 else ""
            sources += _folder(Path(path), format, report, prefix)
    return sources


def corpus_files(inputs: Sequence[Path]) -> list[Path]:
    """The files of a corpus on this machine, in the order in which they are read."""
    return [Path(source.path) for source in find_sources(inputs)]


def _labels(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each path; where several share it, what is below the folder that all are in."""
    full = {path: Path(os.path.abspath(path)) for path in paths}
    names = Counter(place.name for place in {*full.values()})
    root = os.path.commonpath([place.parent for place in full.values()]) if full else ""
    return {
        path: place.relative_to(root).as_posix() if names[place.name] > 1 else place.name
        for path, place in full.items()
    }


def _guess(name: str) -> str | None:
    """Format by file name alone."""
    plain = files.strip_compression(name)
    if _WIKI_FILE.search(plain):
        return "jsonl"  # of WikiExtractor's --json, as HotpotQA's abstracts
    is_document = kind_by_name(plain) is not None or remedy_by_name(plain) is not None
    return files.BY_SUFFIX.get(PurePath(plain).suffix.lower()) or (DOCUMENTS if is_document else None)


def _file_format(path: str, format: str) -> str:
    guessed = _guess(Path(path).name) if format == "auto" else format
    if guessed not in (None, "json") or format != "auto" or not os.path.getsize(path):
        return guessed or "jsonl"
    with files.open_binary(path) as stream:
        head = files.head_of(stream)
    likely = files.format_of(head, path) or (DOCUMENTS if is_text(head) else "")
    if likely in CORPUS_FORMATS:
        return likely
    raise ConfigError(
        f"{path}: its format cannot be guessed from its name or its first bytes ({head[:24]!r})",
        hint=f"say which it is with format: {', '.join(CORPUS_FORMATS)}",
    )


def _folder(folder: Path, format: str, report: ReadReport, prefix: str) -> list[Source]:
    """The sources of a folder: of BEIR its corpus; files of one format, where it is named; people's
    documents, tables among them; else, where nothing but a README lies beside them, files of records.
    """
    corpus = files.in_folder(folder, "corpus.jsonl")
    if format == "auto" and corpus is not None:
        return [Source(str(corpus), "jsonl", corpus.name)]
    kind_of = _files(folder, report)
    kind_of_folder = format
    if format == "auto":
        documents = [name for name, kind in kind_of.items() if kind == DOCUMENTS]
        has_records = any(kind not in (None, DOCUMENTS) for kind in kind_of.values())
        about_data = all(PurePath(name).stem.lower() in _ABOUT_DATA for name in documents)
        kind_of_folder = "records" if has_records and about_data else DOCUMENTS
    several = {DOCUMENTS: (DOCUMENTS, *_ALSO_DOCUMENTS), "records": tuple(files.BY_SUFFIX.values())}
    kinds = several.get(kind_of_folder, (kind_of_folder,))
    chosen = sorted(name for name, kind in kind_of.items() if kind in kinds)
    unused = sorted(kind_of.keys() - set(chosen))
    if not chosen:
        expected = "any known format" if format == "auto" else f"format {format!r}"
        raise DataError(
            f"{folder}: no file of {expected} in this folder ({len(unused)} other files)",
            hint="documents are PDF, Office, ODT, HTML, EPUB, Markdown, text, mail and source code; records "
            f"{', '.join(sorted(files.BY_SUFFIX))}, wiki_00 and BEIR's corpus.jsonl; also with .gz, .bz2, …",
        )
    for name in unused:
        kind = kind_of[name]
        reason = f"{kind}, in a folder of {kind_of_folder}" if kind else "of no known format, or a link out"
        report.ignored.append(f"{folder / name} ({reason})")
    paths = [(str(folder / name), prefix + name) for name in chosen]
    if kind_of_folder == DOCUMENTS:
        return [Source(path, DOCUMENTS, name) for path, name in paths]
    return [Source(path, _file_format(path, format), name) for path, name in paths]


def _files(folder: Path, report: ReadReport) -> dict[str, str | None]:
    """Relative names of the files of a folder, without hidden ones, and their formats as far as names say.

    Links to documents are followed within the folder only; an index in the folder is no part of its corpus.
    """

    def closed(error: OSError) -> None:
        reason = BadRecord("no permission", "this folder may not be read")
        report.add_bad(str(error.filename), reason, is_file=True)

    kind_of: dict[str, str | None] = {}
    inside = folder.resolve()
    for place, folders, names in os.walk(folder, onerror=closed):
        folders[:] = [it for it in sorted(folders) if _is_visible(it) and not is_index(Path(place, it))]
        for path in (Path(place, name) for name in sorted(names) if _is_visible(name)):
            if path.is_file():
                kind = _guess(path.name) or (DOCUMENTS if _is_document(path) else None)
                # a link out of the folder may lead to files that nobody wants indexed
                is_foreign = path.is_symlink() and not path.resolve().is_relative_to(inside)
                name = path.relative_to(folder).as_posix()
                kind_of[name] = None if is_foreign and kind == DOCUMENTS else kind
    return kind_of


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
