from rag.bench.load import latency_interval, run_load
from serve.app import create_app
from tests.api.fakes import FakePipeline, listening, settings


def test_clients_ask_every_question_in_turn() -> None:
    pipeline = FakePipeline()
    with listening(create_app(settings(), lambda _: pipeline)) as url:
        port = int(url.rpartition(":")[2])
        result = run_load(
            "127.0.0.1", port, ["a", "b", "c"], clients=4, requests=9, top_k=20, first=1
        )
    asked = [question for batch in pipeline.batches for question in batch]
    assert sorted(asked) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    assert len(result.latencies_s) == 9
    assert result.requests_per_s > 0
    median = latency_interval(result.latencies_s, 50)
    assert median.low <= median.value <= median.high
