"""The two requests of a thought and its answers, against a real HTTP server with fixed replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from raw_server import Answer, raw_server

from rlsys.config import EndpointSection
from rlsys.config.loading import load_config
from rlsys.endpoints import EndpointFailure, endpoint_client
from rlsys.errors import ModelError
from rlsys.serving.card import BudgetCard, budget_card
from rlsys.serving.client import BudgetedModel, Reply, Thought
from rlsys.tokenization.tokenizer import load_tokenizer

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
END, EOS, HEADER = 101, 3, [102, 103]
HEADER_TEXT = "\n\n**Final Answer**\n\\boxed{"
PROMPT = [2, 24, 100]


def card(*words: str) -> BudgetCard:
    return budget_card(load_config(DEMO, words), load_tokenizer("tiny"), None)


def completion(*choices: tuple[str, list[int]]) -> str:
    parts = [{"text": text, "token_ids": token_ids} for text, token_ids in choices]
    return json.dumps({"choices": parts})


def asked(
    bodies: Sequence[str], *, words: Sequence[str] = (), answers: int = 1
) -> tuple[Reply, list[dict[str, Any]]]:
    """The reply within 16 tokens if the server sends `bodies`, and what was sent to it."""
    requests: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> Answer:
        requests.append(request)
        return Answer(bodies[len(requests) - 1])

    async def reply(url: str) -> Reply:
        section = EndpointSection(base_url=url, model="m", retries=0)
        async with endpoint_client(section) as client:
            model = BudgetedModel(client, "m", card(*words))
            return await model.reply(PROMPT, budget=16, answers=answers)

    with raw_server(answer) as url:
        return asyncio.run(reply(url)), requests


def test_a_thought_that_is_cut_gets_the_whole_forced_text() -> None:
    thought, answers = completion(("3+", [24, 16])), completion(("9}", [30, 98, EOS]), ("8", [29]))
    reply, (first, second) = asked([thought, answers], answers=2)
    assert first["prompt"] == PROMPT
    assert (first["max_tokens"], first["stop_token_ids"]) == (16, [END, EOS])
    assert first["temperature"] == 1.0
    assert second["prompt"] == [*PROMPT, 24, 16, END, *HEADER]
    assert (second["max_tokens"], second["n"], second["stop_token_ids"]) == (6, 2, [EOS])
    assert reply.thought == Thought((24, 16), "3+")
    assert reply.answers == (HEADER_TEXT + "9}", HEADER_TEXT + "8")
    assert reply.tokens == 2 + 3 + 1


def test_a_thought_that_ended_gets_the_header_alone() -> None:
    thought = completion(("3</think>", [24, END]))
    reply, (_, second) = asked([thought, completion(("9}", [30]))])
    assert reply.thought.ended
    assert second["prompt"] == [*PROMPT, 24, END, *HEADER]


def test_answers_that_break_the_form_are_empty() -> None:
    reply, requests = asked([completion(("3<eos>", [24, EOS]))], answers=2)
    assert reply.thought.broken
    assert (reply.answers, len(requests)) == (("", ""), 1)
    second_end = completion(("9</think>9}", [30, END, 30, 98]))
    reply, _ = asked([completion(("3", [24])), second_end])
    assert reply.answers == ("",)
    # The same text in other tokens is no end for this model.
    spelled = completion(("</think>9}", [33, 20, 30, 98]))
    reply, _ = asked([completion(("3", [24])), spelled])
    assert reply.answers == (HEADER_TEXT + "</think>9}",)


def test_without_an_end_of_thought_eos_ends_it_and_is_left_out() -> None:
    thought, answer = completion(("3<eos>", [24, EOS])), completion(("9}", [30]))
    reply, (first, second) = asked([thought, answer], words=["environment.think_end=null"])
    assert first["stop_token_ids"] == [EOS]
    assert (reply.thought.ended, reply.thought.token_ids) == (True, (24,))
    assert second["prompt"] == [*PROMPT, 24, *HEADER]


def test_a_thought_goes_on_where_it_stopped() -> None:
    requests: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> Answer:
        requests.append(request)
        return Answer(completion(("8</think>", [29, END])))

    async def go_on(url: str) -> list[Thought]:
        section = EndpointSection(base_url=url, model="m", retries=0)
        async with endpoint_client(section) as client:
            model = BudgetedModel(client, "m", card())
            longer = await model.think(PROMPT, budget=32, before=Thought((24, 16), "3+"))
            return [longer, await model.think(PROMPT, budget=64, before=longer)]

    with raw_server(answer) as url:
        first, second = asyncio.run(go_on(url))
    assert first == second == Thought((24, 16, 29, END), "3+8</think>", ended=True)
    assert [(r["prompt"], r["max_tokens"]) for r in requests] == [([*PROMPT, 24, 16], 30)]


def test_other_servers_and_cards_are_refused() -> None:
    bodies = [
        '{"choices": [{"text": "3"}]}',
        '{"choices": []}',
        '{"choices": [null]}',
        "{broken",
        '{"choices": 3}',
    ]
    for body in bodies:
        with pytest.raises(EndpointFailure, match=r"0 of 1 completions|JSONDecodeError"):
            asked([body])
    dialogues = load_config(DEMO.with_name("economics_tiny.yaml"))
    with pytest.raises(ModelError, match="dialogues"):
        BudgetedModel(None, "m", budget_card(dialogues, load_tokenizer("tiny"), None))
