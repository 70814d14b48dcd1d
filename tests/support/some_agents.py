"""Agents that call the policy, for tests."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI, BadRequestError

from rlsys.environments.agent.interface import Endpoint, Task


def client_of(endpoint: Endpoint) -> Any:
    return AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)


async def asks(endpoint: Endpoint, *texts: str) -> str:
    """One chat with a message after each reply; returns the last reply."""
    client, chat = client_of(endpoint), []
    reply: Any = None
    for text in texts:
        chat.append({"role": "user", "content": text})
        completion = await client.chat.completions.create(model=endpoint.model, messages=chat)
        reply = completion.choices[0].message
        chat.append(reply)
    return str(reply.content)


async def twice(task: Task, endpoint: Endpoint) -> str:
    """Asks the problem, and once more; the last reply is the answer."""
    return await asks(endpoint, task.text, "and again")


async def rewrites(task: Task, endpoint: Endpoint) -> float:
    """One chat that goes on, and a second one with a tool result; half a point for any reply."""
    await asks(endpoint, task.text, "7+2")
    call = {"id": "call1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    chat = [
        {"role": "user", "content": task.text},
        {"role": "assistant", "content": "1", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call1", "content": "12"},
    ]
    completion = await client_of(endpoint).chat.completions.create(
        model=endpoint.model, messages=chat
    )
    return len(completion.choices[0].message.content or "") % 2 / 2


async def streams(task: Task, endpoint: Endpoint) -> float:
    """Reads a reply as events; returns the tokens that they count."""
    stream = await client_of(endpoint).chat.completions.create(
        model=endpoint.model,
        messages=[{"role": "user", "content": task.text}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert [delta.delta.content for delta in deltas] == [" 5 ", None], deltas
    assert [delta.finish_reason for delta in deltas] == [None, "stop"], deltas
    return float(chunks[-1].usage.completion_tokens)


async def raises(task: Task, endpoint: Endpoint) -> float:
    await asks(endpoint, task.text)
    raise KeyError("no such page")


async def floods(task: Task, endpoint: Endpoint) -> float:
    """Calls until the budget is spent, from many tasks at once; then all calls are refused."""
    client = client_of(endpoint)
    refused = 0

    async def call(number: int) -> None:
        nonlocal refused
        messages = [{"role": "user", "content": str(number % 3)}]
        try:
            await client.chat.completions.create(model=endpoint.model, messages=messages)
        except BadRequestError as error:
            assert error.code == "budget_exhausted", error
            refused += 1

    await asyncio.gather(*map(call, range(20)))
    return refused / 20
