from itertools import cycle
from types import SimpleNamespace

from rag.bench.serve import run_load
from serve.app import create_app
from tests.api.fakes import FakePipeline, listening, settings


def test_clients_ask_every_question_in_turn() -> None:
    pipeline = FakePipeline()
    with listening(create_app(settings(), lambda _: pipeline)) as url:
        server = SimpleNamespace(host="127.0.0.1", port=int(url.rpartition(":")[2]))
        latencies_s = run_load(server, cycle("abc"), clients=4, requests=9, top_k=20)
    asked = [question for batch in pipeline.batches for question in batch]
    assert sorted(asked) == [*"aaabbbccc"]
    assert len(latencies_s) == 9
    assert min(latencies_s) > 0
