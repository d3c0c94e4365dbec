from rag.bench.common import time_interleaved


def test_rounds_run_everyone_and_alternate_their_order() -> None:
    ran: list[str] = []
    contestants = {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}
    timings = time_interleaved(contestants, rounds=2, warm_up=1)
    assert ran == ["a", "b", "a", "b", "b", "a"]
    assert [len(timings[name].elapsed_s) for name in "ab"] == [2, 2]
    assert [timings[name].results for name in "ab"] == [[None, None]] * 2
