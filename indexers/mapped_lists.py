"""Inverted lists of blocked codes in a file that is mapped into memory.

FAISS reads the lists of its `IndexIVFPQFastScan` into the memory of every process. Its lists on
disk (`OnDiskInvertedLists`) can hold the same blocks, and the search reads both through one
interface: results are equal, processes share the pages, and an index opens without reading them.

`faiss.lists` has, for each list, the codes in blocks of 32 and then the ids (int64), both with room
for whole blocks; unused ids are -1. Where each list is stands in `faiss.index`.
"""

from pathlib import Path

import faiss
import numpy as np

from rag.core.errors import ArtifactError, IncompleteArtifactError
from rag.core.files import atomic_path

LISTS_NAME = "faiss.lists"


def move_lists(index: faiss.Index, directory: Path) -> None:
    """Write the lists of an `IndexIVFPQFastScan` into `directory`, and refer to that file from the
    index.

    The index is then for `faiss.write_index` alone.
    """
    blocks = faiss.downcast_InvertedLists(index.invlists)
    lists = faiss.OnDiskInvertedLists()
    lists.nlist = index.nlist
    lists.code_size = index.code_size
    lists.read_only = True
    with atomic_path(directory / LISTS_NAME) as temporary, temporary.open("wb") as file:
        for number in range(index.nlist):
            size = blocks.list_size(number)
            room = -(-size // blocks.n_per_block) * blocks.n_per_block
            entry = faiss.OnDiskOneList()
            entry.size = size
            entry.capacity = room
            entry.offset = file.tell()
            lists.lists.push_back(entry)
            if room:
                ids = np.full(room, -1, np.int64)
                ids[:size] = faiss.rev_swig_ptr(blocks.get_ids(number), size)
                file.write(faiss.rev_swig_ptr(blocks.get_codes(number), room * index.code_size))
                file.write(ids.data)
        lists.filename = LISTS_NAME
        lists.totsize = file.tell()
    index.replace_invlists(lists, True)
    lists.this.disown()


def open_lists(path: Path) -> faiss.Index:
    """FAISS's index in a file, with lists that `move_lists` wrote beside it, mapped.

    Raises:
        ArtifactError: the file of lists is missing or has another size than the index says.
        RuntimeError: FAISS cannot read the index.
    """
    file = path.with_name(LISTS_NAME)
    if not file.is_file():
        raise IncompleteArtifactError(f"{file} is missing", hint="restore it or rebuild the index")
    index = faiss.read_index(str(path), faiss.IO_FLAG_READ_ONLY | faiss.IO_FLAG_SKIP_IVF_DATA)
    lists = faiss.downcast_InvertedLists(index.invlists)
    size = file.stat().st_size
    if size != lists.totsize:
        raise ArtifactError(
            f"{file} has {size:,} bytes, expected {lists.totsize:,}",
            hint="restore it or rebuild the index",
        )
    lists.filename = str(file)
    lists.prefetch_nthread = 0  # threads that read ahead cost more than they bring
    if size:
        lists.do_mmap()
    return index
