import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rag.bench.load import latency_interval, run_load


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body["question"])
        status = 500 if body["question"] == "fail" else 200
        content = b"{}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    handler = type("FreshHandler", (Handler,), {"asked": []})
    running = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield running
    running.shutdown()
    running.server_close()


def test_clients_ask_every_question_in_turn(server: ThreadingHTTPServer) -> None:
    result = run_load(
        "127.0.0.1", server.server_port, ["a", "b", "c"], clients=4, requests=9, top_k=20, first=1
    )
    assert sorted(server.RequestHandlerClass.asked) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    assert len(result.latencies_s) == 9
    assert result.requests_per_s > 0
    median = latency_interval(result.latencies_s, 50)
    assert median.low <= median.value <= median.high
