from types import SimpleNamespace

from rag.bench.serve import run_load
from serve.app import create_app
from tests.api.fakes import FakePipeline, listening, settings


def test_clients_ask_every_question_in_turn() -> None:
    pipeline = FakePipeline()
    with listening(create_app(settings(), lambda _: pipeline)) as url:
        server = SimpleNamespace(host="127.0.0.1", port=int(url.rpartition(":")[2]))
        result = run_load(server, ["a", "b", "c"], clients=4, requests=9, top_k=20, first=1)
    asked = [question for batch in pipeline.batches for question in batch]
    assert sorted(asked) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    assert len(result.latencies_s) == 9
    assert 0 < max(result.latencies_s) < result.wall_s
