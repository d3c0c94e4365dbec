from rag.bench.common import time_interleaved


def test_rounds_run_everyone_and_alternate_their_order() -> None:
    ran: list[str] = []
    contestants = {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}
    timings = time_interleaved(contestants, rounds=2, warm_up=1)
    assert ran == ["a", "b", "a", "b", "b", "a"]
    assert {name: len(rounds) for name, rounds in timings.items()} == {"a": 2, "b": 2}
