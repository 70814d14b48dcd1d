"""A real HTTP server that speaks /v1/chat/completions and works sums out; it runs in a thread."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from economics_server import free_port
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from rlsys.data.arithmetic import signed_terms


class ChatServer:
    """`requests` holds the bodies received, `keys` their Authorization; `failing` is a test's."""

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.failing: Callable[[int, dict[str, Any]], int | None] = lambda number, body: None
        """Maps (number of the request, its body) to an HTTP status instead of an answer."""
        self.message: Callable[[Any], dict[str, Any]] = lambda answer: {
            "content": f"It is \\boxed{{{answer}}}."
        }
        """Maps the right answer to the fields of the reply."""

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def complete(request: Request) -> Any:
            body = await request.json()
            self.keys.add(request.headers.get("authorization"))
            self.requests.append(body)
            status = self.failing(len(self.requests), body)
            if status:
                return JSONResponse({"error": {"message": "out of order"}}, status)
            (message,) = body["messages"]
            answer = sum(signed_terms(message["content"].split("\n")[-1]))
            reply = {"role": "assistant"} | self.message(answer)
            choice = {"index": 0, "message": reply, "finish_reason": "stop"}
            return {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [choice],
            }

        return app


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    """A ChatServer that answers."""
    port = free_port()
    chat = ChatServer(port)
    config = uvicorn.Config(chat.app(), port=port, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.02)
        yield chat
    finally:
        server.should_exit = True
        thread.join()
