"""A real server of vLLM, started with the arguments of a budget card, cuts as in training."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest

from rlsys.assets import shipped_path
from rlsys.config import ArithmeticData, EndpointSection
from rlsys.config.loading import load_config
from rlsys.data.problems import load_problems
from rlsys.endpoints import endpoint_client
from rlsys.grading.compare import is_correct
from rlsys.serving.card import BudgetCard, budget_card, prompt_ids
from rlsys.serving.client import BudgetedModel, Reply
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import Problem

ROOT = Path(__file__).parents[2]
FORCED = "</think>\n\n**Final Answer**\n\\boxed{"


async def replies(url: str, card: BudgetCard, problems: list[Problem], budget: int) -> list[Reply]:
    tokenizer = load_tokenizer("tiny")
    async with endpoint_client(EndpointSection(base_url=url, model="model")) as client:
        model = BudgetedModel(client, "model", card)
        prompts = [prompt_ids(card, tokenizer, problem.text) for problem in problems]
        return await asyncio.gather(*(model.reply(p, budget=budget) for p in prompts))


async def own_budget(url: str, card: BudgetCard, problem: Problem) -> str:
    """The text of one request with vLLM's own thinking budget of 4 tokens."""
    assert card.vllm is not None
    prompt = prompt_ids(card, load_tokenizer("tiny"), problem.text)
    extra = {"thinking_token_budget": 4, "skip_special_tokens": False}
    async with endpoint_client(EndpointSection(base_url=url, model="model")) as client:
        found: Any = await client.completions.create(
            model="model", prompt=list(prompt), max_tokens=16, temperature=1.0, extra_body=extra
        )
    return str(found.choices[0].text)


@pytest.mark.slow
@pytest.mark.chaos
def test_a_server_cuts_as_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    server = importlib.import_module("served_model")
    for package in server.PACKAGES:
        pytest.importorskip(package)
    card = budget_card(load_config(ROOT / "configs" / "demo.yaml"), load_tokenizer("tiny"), None)
    problems = load_problems(ArithmeticData(seed=1_000_003, size=64, held_out=True))
    assert card.vllm is not None and card.vllm.one_call is not None
    with server.served(shipped_path("tiny"), (*card.vllm.serve, *card.vllm.one_call.serve)) as url:
        found = {b: asyncio.run(replies(url, card, problems, b)) for b in (4, 64)}
        text = asyncio.run(own_budget(url, card, problems[0]))
    right = {
        budget: sum(map(is_correct, (r.answers[0] for r in rs), (p.answer for p in problems)))
        for budget, rs in found.items()
    }
    # The shipped model has .88 of the answers right at 64 tokens, and few at 4.
    assert right[64] > 44 > 32 > right[4]
    assert all(len(reply.thought.token_ids) <= 4 for reply in found[4])
    assert text.index(FORCED) > 0
