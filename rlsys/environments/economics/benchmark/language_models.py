"""Language models as agents: behind an OpenAI-compatible endpoint, or in an engine of rlsys.

Both see one question at a time, with what is left of the budget, and no earlier turns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from rlsys.endpoints import EndpointFailure, Reply, ask, endpoint_client
from rlsys.environments.economics.benchmark.config import EndpointConfig, LocalModelConfig
from rlsys.environments.economics.benchmark.sessions import Answer
from rlsys.environments.economics.errors import EndpointError
from rlsys.environments.economics.models import EconomicsObservation
from rlsys.environments.seeds import derive_seed
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import think_end_id
from rlsys.tokenization.tokenizer import eos_ids
from rlsys.types import GenerationRequest, Generator

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from transformers import PreTrainedTokenizerBase

FAILURES_IN_A_ROW: Final = 20
"""So many replies that fail one after the other mean that an endpoint is gone."""


def facts(seen: EconomicsObservation) -> dict[str, float]:
    """Return what a template may show beside {problem}."""
    return {
        "remaining": float(max(0.0, seen.remaining_budget)),
        "questions_remaining": float(seen.questions_remaining),
        "per_question": float(max(0.0, seen.budget_per_remaining) // 1),
        "number": float(seen.step_idx + 1),
        "problems": float(seen.num_questions),
    }


def reply_limit(seen: EconomicsObservation, most: int) -> int:
    """Return the most tokens that a reply may have: no more than remain in hard mode."""
    return min(most, int(seen.remaining_budget)) if seen.budget_mode == "hard" else most


@asynccontextmanager
async def endpoint_agent(config: EndpointConfig) -> AsyncIterator[EndpointAgent]:
    """Connect to an endpoint that has been probed to answer.

    Raises EndpointError, before anything is asked in earnest, if it does not, and what
    `endpoint_client` raises.
    """
    async with endpoint_client(config) as client:
        agent = EndpointAgent(config, client)
        await agent.probe()
        yield agent


class EndpointAgent:
    """Answers through chat completions. A reply that fails is an empty answer and is counted."""

    def __init__(self, config: EndpointConfig, client: AsyncOpenAI) -> None:
        self._config = config
        self._client = client
        self._failures = 0

    @property
    def concurrency(self) -> int:
        """Episodes at once."""
        return self._config.concurrency

    async def probe(self) -> None:
        """Ask for one token. Raises EndpointError if that fails."""
        try:
            await self._ask("1+1", 1)
        except EndpointFailure as failure:
            raise EndpointError(
                f"endpoint {self._config.name!r} at {self._config.base_url} does not answer for "
                f"model {self._config.model!r} ({failure}); start it, or correct its "
                "base_url, model or api_key_env"
            ) from failure

    async def answer(self, seen: EconomicsObservation) -> Answer:
        """Answer the question. Raises EndpointError once the endpoint seems gone for good."""
        prompt = self._config.template
        for name, value in facts(seen).items():
            prompt = prompt.replace(f"{{{name}}}", f"{value:.10g}")
        prompt = prompt.replace("{problem}", seen.question)
        try:
            reply = await self._ask(prompt, reply_limit(seen, self._config.max_tokens))
        except EndpointFailure as failure:
            self._failures += 1
            if self._failures >= FAILURES_IN_A_ROW:
                raise EndpointError(
                    f"endpoint {self._config.name!r} failed {self._failures} times in a row "
                    f"({failure}); agents that had finished are in results.json"
                ) from failure
            return Answer("", failed=True)
        self._failures = 0
        if not reply.thought:
            return Answer(reply.content)
        # A thought apart is charged like the rest.
        return Answer(f"{reply.thought}\n{reply.content}", visible=reply.content)

    def learn(self, seen: EconomicsObservation, answer: Answer, reward: float) -> None:
        """Nothing: the model is fixed."""

    async def _ask(self, prompt: str, max_tokens: int) -> Reply:
        config = self._config
        return await ask(
            self._client,
            config.model,
            prompt,
            temperature=config.temperature,
            max_tokens=max_tokens,
        )


class ModelAgent:
    """Answers through a Generator: token ids in, token ids out."""

    def __init__(
        self,
        config: LocalModelConfig,
        generator: Generator,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
    ) -> None:
        """Answer with sequences of at most `max_length` tokens.

        Raises ModelError for a tokenizer without EOS, `think_end` or a usable chat template.
        """
        self._config = config
        self._generator = generator
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._renderer = PromptRenderer(tokenizer, config.prompt)
        self._stop_ids = eos_ids(tokenizer)
        self._think_end = (
            None if config.think_end is None else think_end_id(tokenizer, config.think_end)
        )

    @property
    def concurrency(self) -> int:
        """Episodes at once."""
        return self._config.concurrency

    async def answer(self, seen: EconomicsObservation) -> Answer:
        """Answer the question; one whose prompt leaves no room is a failed, empty answer."""
        prompt = self._renderer.render_first(seen.question, facts(seen))
        room = self._max_length - len(prompt)
        if room < 1:
            return Answer("", failed=True)
        ((completion,),) = await self._generator.generate(
            [
                GenerationRequest(
                    token_ids=prompt,
                    n=1,
                    max_tokens=min(room, reply_limit(seen, self._config.max_tokens)),
                    stop_token_ids=self._stop_ids,
                    temperature=self._config.temperature,
                    seed=derive_seed(seen.seed, "evaluation", seen.step_idx),
                )
            ]
        )
        ids = completion.token_ids.tolist()
        return Answer(
            self._decode(ids),
            visible=self._visible(ids),
            sampled_tokens=len(ids) if seen.trusted else None,
        )

    def learn(self, seen: EconomicsObservation, answer: Answer, reward: float) -> None:
        """Nothing: the model is fixed."""

    def _visible(self, ids: Sequence[int]) -> str | None:
        """What follows the last end of a thought; nothing where it never ends."""
        if self._think_end is None:
            return None
        if self._think_end not in ids:
            return ""
        return self._decode(ids[len(ids) - ids[::-1].index(self._think_end) :])

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
