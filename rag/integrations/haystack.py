"""A retriever component for Haystack."""

from __future__ import annotations

from typing import Any

from rag.core.optional import require
from rag.integrations.source import Source, metadata_of, open_source

require("haystack", extra="haystack")

from haystack import Document, component  # noqa: E402


@component
class RagRetriever:
    """Documents of an index or a running server; their metadata has title, and file and page if known.

    Args:
        index: folder of an index, or address of a server such as `http://localhost:8000`.
        top_k: number of documents to return.
        options: options of `rag.integrations.source.open_source`, such as `{"retriever": "hybrid"}`.
    """

    def __init__(self, index: str, top_k: int = 10, options: dict[str, Any] | None = None) -> None:
        self.index, self.top_k, self.options = index, top_k, options
        self._source: Source | None = None

    def warm_up(self) -> None:
        """Open the index, once."""
        if self._source is None:
            self._source = open_source(self.index, **(self.options or {}))

    @component.output_types(documents=list[Document])
    def run(self, query: str, top_k: int | None = None) -> dict[str, list[Document]]:
        """The best passages for a question."""
        self.warm_up()
        assert self._source is not None
        found = self._source.retrieve(query, top_k or self.top_k)
        return {
            "documents": [
                Document(id=passage.id, content=passage.text, meta=metadata_of(passage), score=score)
                for passage, score in found
            ]
        }
