"""A retriever for LangChain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, PrivateAttr

from rag.core.optional import require
from rag.integrations.source import Source, metadata_of, open_source

require("langchain_core", extra="langchain")

from langchain_core.callbacks import CallbackManagerForRetrieverRun  # noqa: E402
from langchain_core.documents import Document  # noqa: E402
from langchain_core.retrievers import BaseRetriever  # noqa: E402


class RagRetriever(BaseRetriever):
    """Documents of an index or a running server; their metadata has title, score, and file and page.

    Attributes:
        index: folder of an index, or address of a server such as `http://localhost:8000`.
        k: number of documents to return.
        options: options of `rag.integrations.source.open_source`, such as `{"retriever": "hybrid"}`.
    """

    index: str
    k: int = Field(10, ge=1)
    options: Mapping[str, Any] = {}
    _source: Source = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Open the index."""
        self._source = open_source(self.index, **self.options)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return [
            Document(passage.text, id=passage.id, metadata=metadata_of(passage, score))
            for passage, score in self._source.retrieve(query, k or self.k)
        ]
