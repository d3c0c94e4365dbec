"""A local server that speaks the chat protocol, in the place of a language model."""

import contextlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def chat(text: str | None, logprobs: Any = None) -> tuple[int, bytes]:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
    }
    if logprobs is not None:
        choice["logprobs"] = {"content": logprobs}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return 200, json.dumps(body).encode()


def streamed(*pieces: str, is_whole: bool = True) -> tuple[int, bytes]:
    """A reply in pieces; one that is not whole has no end."""
    events = []
    for piece in [*pieces, None]:
        choice = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
        if piece is None:
            choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
        if piece is not None or is_whole:
            chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            events.append(f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n")
    return 200, "".join([*events, "data: [DONE]\n\n"] if is_whole else events).encode()


class Server:
    """Replies from a list, the last one for ever; remembers the requests."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, bytes] | Callable[[dict[str, Any]], tuple[int, bytes]]] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                outer.keys.append(self.headers.get("Authorization"))
                reply = outer.replies.pop(0) if len(outer.replies) > 1 else outer.replies[0]
                status, data = reply(body) if callable(reply) else reply
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.source = f"openai:http://127.0.0.1:{self._server.server_port}/v1#tiny"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
