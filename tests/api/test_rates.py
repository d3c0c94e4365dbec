"""The limit of questions per API key."""

import pytest

from serve.engine import KeyRates
from serve.settings import hash_api_key
from tests.api.fakes import running
from tests.api.test_errors import check

KEYS = {name: {"X-API-Key": name} for name in ("one", "two")}
HASHES = tuple(map(hash_api_key, KEYS))


@pytest.mark.anyio
async def test_a_key_that_asks_too_much_waits_alone():
    async with running(api_keys=HASHES, questions_per_minute=4) as client:

        async def post(path: str, body: object, key: str = "one"):
            return await client.post(path, json=body, headers=KEYS[key])

        assert (await post("/v1/ask", {"question": "a"})).status_code == 200
        assert (await post("/v1/retrieve", {"questions": ["a"] * 3})).status_code == 200
        refused = await post("/v1/ask", {"question": "a"})
        assert "4 questions per minute" in check(refused, 429, "rate_limited")["message"]
        assert 14 <= int(refused.headers["retry-after"]) <= 15
        assert (await post("/v1/ask", {"question": "a"}, "two")).status_code == 200
        assert (await client.get("/v1/passages/danube-1", headers=KEYS["one"])).status_code == 200
        metrics = (await client.get("/metrics")).text
    assert 'rag_rejected_total{reason="rate_limited"} 1.0' in metrics
    assert 'rag_key_questions_total{key="1"} 4.0' in metrics
    assert 'rag_key_questions_total{key="2"} 1.0' in metrics
    assert not any(key_hash[:6] in metrics for key_hash in HASHES)


def test_the_allowance_grows_evenly_and_a_long_list_delays_the_next_request():
    now_s = [1000.0]
    rates = KeyRates(60, clock=lambda: now_s[0])
    assert rates.charge("a", 90) == 0.0  # an idle key's first request is not refused
    assert rates.charge("a") == 31.0
    now_s[0] += 31.0
    assert rates.charge("a") == 0.0
    assert rates.charge("a") == 1.0
    now_s[0] += 3600.0
    assert [rates.charge("a") for _ in range(61)] == [0.0] * 60 + [1.0]
