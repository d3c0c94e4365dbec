"""A corpus without questions to train on: the passages of an index, or files that are cut into
passages.
"""

from collections.abc import Sequence
from pathlib import Path

from indexers.index import Index
from indexers.passage_writer import writing_passages
from indexers.passages import PassageStore
from rag.config import load_config
from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_path
from rag.core.manifest import MANIFEST_NAME
from rag.data.corpus import read_documents
from rag.data.records import CorpusOptions
from rag.data.split import split_documents


def open_corpus(sources: Sequence[Path], folder: Path, split: str = "words100") -> PassageStore:
    """The passages of a corpus by row, mapped.

    Args:
        sources: one built index, whose passages are taken as they are; or files and folders of
            documents.
        folder: where the passages of files are stored, once; it belongs to this corpus.
        split: how files are split, see `CorpusOptions`.
    """
    for path in sources:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder", hint="give an index, or documents")
    indexes = [path for path in sources if (path / MANIFEST_NAME).is_file()]
    if indexes:
        if len(sources) > 1:
            raise ConfigError(
                f"{indexes[0]} is an index: it is a whole corpus", hint="give it alone"
            )
        with Index.open(indexes[0]) as index:
            return index.passages
    stored = folder / "corpus"
    if not stored.is_dir():
        options = load_config(CorpusOptions, overrides={"split": split})
        with atomic_path(stored, folder=True) as temporary, writing_passages(temporary) as writer:
            writer.add_many(split_documents(read_documents(sources), options))
    return PassageStore(stored)
