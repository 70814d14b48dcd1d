"""Replies of any shape from a real HTTP server: read, empty, or one kind of failure."""

from __future__ import annotations

import asyncio
import json

import pytest
from raw_server import Answer, raw_server

from rlsys.config import EndpointSection
from rlsys.endpoints import ChatReply, EndpointFailure, ask, endpoint_client


def reply_to(body: str, content_type: str = "application/json") -> ChatReply:
    async def one(url: str) -> ChatReply:
        section = EndpointSection(base_url=url, model="m", retries=0)
        async with endpoint_client(section) as client:
            return await ask(client, "m", "1+1", temperature=0.0, max_tokens=4)

    with raw_server(lambda asked: Answer(body, content_type=content_type)) as url:
        return asyncio.run(one(url))


def message(**fields: object) -> str:
    return json.dumps({"choices": [{"message": fields}]})


def test_what_is_there_is_read() -> None:
    cases: list[tuple[str, ChatReply]] = [
        (message(content="2"), ChatReply("2", "")),
        (message(content="2", reasoning_content="1 and 1"), ChatReply("2", "1 and 1")),
        (message(content="2", reasoning="1 and 1"), ChatReply("2", "1 and 1")),
        (message(content=None), ChatReply("", "")),
        (message(content=[{"type": "text", "text": "2"}, 3, {}], reasoning=3), ChatReply("2", "")),
        ('{"choices": []}', ChatReply("", "")),
    ]
    for body, reply in cases:
        assert reply_to(body) == reply, body


def test_anything_else_is_a_failure() -> None:
    cases: list[str] = [
        "",
        "{broken",
        "null",
        "[]",
        "[" * 100_000,
        '"text"',
        "{}",
        '{"choices": null}',
        '{"choices": {}}',
        '{"choices": [null]}',
        '{"choices": ["2"]}',
        '{"choices": [{}]}',
        '{"choices": [{"message": null}]}',
        '{"choices": [{"message": "2"}]}',
    ]
    for body in cases:
        with pytest.raises(
            EndpointFailure, match=r"JSONDecodeError|RecursionError|no chat completion"
        ):
            reply_to(body)


def test_a_page_for_people_is_a_failure_that_shows_its_beginning() -> None:
    with pytest.raises(EndpointFailure, match="no chat completion: '<html>Sign in"):
        reply_to("<html>Sign in" + "x" * 10_000, "text/html")
