"""LangChain's own tests of its retriever, and the documents that it returns."""

from pathlib import Path
from typing import Any

import pytest
from langchain_tests.integration_tests import RetrieversIntegrationTests

import rag
from rag.integrations.langchain import RagRetriever

QUESTION = "Where does the Danube rise?"


@pytest.mark.anyio
class TestLangChain(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _place(self, folder: Path) -> None:
        self.place = str(folder)

    @property
    def retriever_constructor(self) -> type[RagRetriever]:
        return RagRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": self.place, "k": 3}

    @property
    def retriever_query_example(self) -> str:
        return QUESTION


def test_documents_are_the_pipelines_passages(folder: Path, pipeline: rag.Pipeline) -> None:
    expected = pipeline.retrieve(QUESTION, 3)
    documents = RagRetriever(index=str(folder), k=3).invoke(QUESTION)
    assert [document.id for document in documents] == [passage.id for _, passage in expected]
    assert documents[0].metadata == {
        "title": "Danube",
        "score": pytest.approx(expected[0][0].score),
    }
    (of_the_web,) = [document for document in documents if document.id == "web#3"]
    assert of_the_web.metadata["path"] == "https://example.org/kenya"
