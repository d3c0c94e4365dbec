"""Retrievers of other frameworks: by folder and by server, in each framework's own terms."""

from pathlib import Path
from typing import Any

import pytest
from langchain_tests.integration_tests import RetrieversIntegrationTests

import rag
from rag.core.errors import ConfigError, ResourceError
from rag.integrations.langchain import RagRetriever
from rag.integrations.source import open_source

QUESTION = "Where does the Danube rise?"


@pytest.mark.anyio
class _LangChainTests(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[RagRetriever]:
        return RagRetriever

    @property
    def retriever_query_example(self) -> str:
        return QUESTION


class TestLangChainFolder(_LangChainTests):
    @pytest.fixture(autouse=True)
    def _place(self, folder: Path) -> None:
        self.place = str(folder)

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": self.place, "k": 3}


class TestLangChainServer(_LangChainTests):
    @pytest.fixture(autouse=True)
    def _place(self, address: str) -> None:
        self.place = address

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": self.place, "k": 3}


def test_folder_and_server_give_the_pipelines_passages(
    folder: Path, address: str, pipeline: rag.Pipeline
) -> None:
    expected = [(passage, pytest.approx(hit.score)) for hit, passage in pipeline.retrieve(QUESTION, 3)]
    for source in (open_source(folder), open_source(address)):
        assert source.retrieve(QUESTION, 3) == expected
        for passage, _ in expected:
            assert source.passage(passage.id) == passage
        assert source.passage("nothing") is None
    documents = RagRetriever(index=address, k=3).invoke(QUESTION)
    assert documents[0].metadata == {"title": "Danube", "score": expected[0][1]}
    assert [document.id for document in documents] == [passage.id for passage, _ in expected]
    (of_the_web,) = [document for document in documents if document.id == "web#3"]
    assert of_the_web.metadata["path"] == "https://example.org/kenya"


def test_a_server_that_refuses_or_is_not_there_is_explained(address: str) -> None:
    with pytest.raises(ConfigError, match=r"answered 404: there is no index 'news'\n.*openqa-rag"):
        open_source(address, name="news").retrieve(QUESTION, 3)
    with pytest.raises(ConfigError, match="no index 'news'"):
        open_source(address, name="news").passage("web#3")
    with pytest.raises(ConfigError, match=r"422: top_k is 1001, at most 100"):
        open_source(address).retrieve(QUESTION, 1001)
    with pytest.raises(ConfigError, match=r"options api_key, name and timeout_s, and not retriever"):
        open_source(address, retriever="hybrid")
    with pytest.raises(ResourceError, match=r"127\.0\.0\.1:9 cannot be reached"):
        open_source("http://127.0.0.1:9").retrieve(QUESTION, 3)


def test_llama_index(folder: Path) -> None:
    pytest.importorskip("llama_index.core")
    from rag.integrations.llama_index import RagRetriever as LlamaRetriever

    nodes = LlamaRetriever(str(folder), similarity_top_k=2).retrieve(QUESTION)
    assert [node.node_id for node in nodes] == ["rivers/1", "rivers/2"]
    assert nodes[0].metadata == {"title": "Danube"}
    assert nodes[0].score > nodes[1].score


def test_haystack(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    haystack = pytest.importorskip("haystack")
    from rag.integrations.haystack import RagRetriever as HaystackRetriever

    made = haystack.Pipeline()
    made.add_component("retriever", HaystackRetriever(str(folder), top_k=3, options={"retriever": "dense"}))
    again = haystack.Pipeline.loads(made.dumps(), allowed_modules=["rag.integrations.haystack"])
    documents = again.run({"retriever": {"query": QUESTION, "top_k": 2}})["retriever"]["documents"]
    assert [document.id for document in documents] == ["rivers/1", "rivers/2"]
    assert documents[0].meta == {"title": "Danube"}
    assert documents[0].score > documents[1].score


def test_wrong_options_and_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no option 'foo'"):
        open_source(tmp_path, foo=1)
    with pytest.raises(ConfigError, match="the API key has characters"):
        open_source("http://127.0.0.1:9", api_key="abc\n")
