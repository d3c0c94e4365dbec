"""A retriever for LangChain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, PrivateAttr

from rag.core.optional import require
from rag.integrations import passage_metadata
from rag.pipeline import Pipeline

require("langchain_core", extra="langchain")

from langchain_core.callbacks import CallbackManagerForRetrieverRun  # noqa: E402
from langchain_core.documents import Document  # noqa: E402
from langchain_core.retrievers import BaseRetriever  # noqa: E402


class RagRetriever(BaseRetriever):
    """Documents of an index; their metadata has title, score, and file and page.

    Attributes:
        index: folder of an index.
        k: number of documents to return.
        options: arguments of `Pipeline.open`, such as `{"retriever": "hybrid"}`.
    """

    index: str
    k: int = Field(10, ge=1)
    options: Mapping[str, Any] = {}
    _pipeline: Pipeline = PrivateAttr()

    def model_post_init(self, context: object) -> None:
        """Open the index."""
        self._pipeline = Pipeline.open(self.index, reads=False, **self.options)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return [
            Document(
                passage.text,
                id=passage.id,
                metadata={**passage_metadata(passage), "score": hit.score},
            )
            for hit, passage in self._pipeline.retrieve(query, k or self.k)
        ]
