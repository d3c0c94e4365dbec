"""A retriever for LlamaIndex."""

from __future__ import annotations

from typing import Any

from rag.core.optional import require
from rag.integrations.source import metadata_of, open_source

require("llama_index.core", extra="llama-index")

from llama_index.core.base.base_retriever import BaseRetriever  # noqa: E402
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode  # noqa: E402


class RagRetriever(BaseRetriever):
    """Nodes of an index or a running server; their metadata has title, score, and file and page.

    Args:
        index: folder of an index, or address of a server such as `http://localhost:8000`.
        similarity_top_k: number of nodes to return.
        options: options of `rag.integrations.source.open_source`, such as `retriever="hybrid"`.
    """

    def __init__(self, index: str, similarity_top_k: int = 10, **options: Any) -> None:
        super().__init__()
        self._source, self._top_k = open_source(index, **options), similarity_top_k

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(
                node=TextNode(id_=passage.id, text=passage.text, metadata=metadata_of(passage)), score=score
            )
            for passage, score in self._source.retrieve(query_bundle.query_str, self._top_k)
        ]
