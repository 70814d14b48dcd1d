"""Language models as agents: behind an OpenAI-compatible endpoint, or in a vLLM engine of rlsys.

Both see one question at a time and the remaining budget, but no earlier turns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from rlsys.config import EndpointAgentConfig, LocalModelConfig
from rlsys.endpoints import ChatReply, EndpointFailure, ask, endpoint_client
from rlsys.environments.economics.benchmark.agents import AgentAnswer
from rlsys.environments.economics.errors import EndpointError
from rlsys.environments.economics.models import EconomicsObservation
from rlsys.environments.seeds import derive_seed
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import ThoughtEnd
from rlsys.tokenization.tokenizer import eos_ids
from rlsys.types import GenerationRequest, Generator

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from transformers import PreTrainedTokenizerBase

FAILURES_IN_A_ROW: Final = 20
"""After this many failed replies in a row the endpoint counts as unavailable."""


def template_values(seen: EconomicsObservation) -> dict[str, float]:
    """Return the values that a template may contain beside {problem}."""
    return {
        "remaining": float(max(0.0, seen.remaining_budget)),
        "questions_remaining": float(seen.questions_remaining),
        "per_question": float(max(0.0, seen.budget_per_remaining) // 1),
        "number": float(seen.step_idx + 1),
        "problems": float(seen.num_questions),
    }


def reply_limit(seen: EconomicsObservation, most: int) -> int:
    """Return the most tokens that a reply may have: `most`, in hard mode at most the remaining."""
    return min(most, int(seen.remaining_budget)) if seen.budget_mode == "hard" else most


@asynccontextmanager
async def endpoint_agent(config: EndpointAgentConfig) -> AsyncIterator[EndpointAgent]:
    """Connect to an endpoint and check with one short request that it answers.

    Raises EndpointError if it does not answer, and the errors of `endpoint_client`.
    """
    async with endpoint_client(config) as client:
        agent = EndpointAgent(config, client)
        await agent.probe()
        yield agent


class EndpointAgent:
    """Answers with chat completions. A failed request gives an empty answer marked as failed."""

    def __init__(self, config: EndpointAgentConfig, client: AsyncOpenAI) -> None:
        self._config = config
        self._client = client
        self._failures = 0

    @property
    def concurrency(self) -> int:
        """Episodes at once."""
        return self._config.concurrency

    async def probe(self) -> None:
        """Request one token. Raises EndpointError if that fails."""
        try:
            await self._ask("1+1", 1)
        except EndpointFailure as failure:
            raise EndpointError(
                f"endpoint {self._config.name!r} at {self._config.base_url} does not answer for "
                f"model {self._config.model!r} ({failure}); start it, or correct its "
                "base_url, model or api_key_env"
            ) from failure

    async def answer(self, seen: EconomicsObservation) -> AgentAnswer:
        """Answer the question. Raises EndpointError after FAILURES_IN_A_ROW failed requests."""
        prompt = self._config.template
        for name, value in template_values(seen).items():
            prompt = prompt.replace(f"{{{name}}}", f"{value:.10g}")
        prompt = prompt.replace("{problem}", seen.question)
        try:
            reply = await self._ask(prompt, reply_limit(seen, self._config.max_tokens))
        except EndpointFailure as failure:
            self._failures += 1
            if self._failures >= FAILURES_IN_A_ROW:
                raise EndpointError(
                    f"endpoint {self._config.name!r} failed {self._failures} times in a row "
                    f"({failure}); start it again and repeat the run, whose results.json holds the "
                    "agents that had finished"
                ) from failure
            return AgentAnswer("", failed=True)
        self._failures = 0
        if not reply.thought:
            return AgentAnswer(reply.content)
        # The server sent the thought separately. It is charged as well, but not graded.
        return AgentAnswer(f"{reply.thought}\n{reply.content}", visible=reply.content)

    def learn(self, seen: EconomicsObservation, answer: AgentAnswer, reward: float) -> None:
        """Do nothing: the model is fixed."""

    async def _ask(self, prompt: str, max_tokens: int) -> ChatReply:
        config = self._config
        return await ask(
            self._client,
            config.model,
            prompt,
            temperature=config.temperature,
            max_tokens=max_tokens,
        )


class ModelAgent:
    """Answers with a Generator, which takes and returns token ids."""

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
        self._thought_end = ThoughtEnd.resolve(tokenizer, config.think_end)

    @property
    def concurrency(self) -> int:
        """Episodes at once."""
        return self._config.concurrency

    async def answer(self, seen: EconomicsObservation) -> AgentAnswer:
        """Answer the question; a prompt that fills the model's context gives a failed answer."""
        prompt = self._renderer.render_first(seen.question, template_values(seen))
        room = self._max_length - len(prompt)
        if room < 1:
            return AgentAnswer("", failed=True)
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
        return AgentAnswer(
            self._decode(ids),
            visible=self._visible(ids),
            sampled_tokens=len(ids) if seen.trusted else None,
        )

    def learn(self, seen: EconomicsObservation, answer: AgentAnswer, reward: float) -> None:
        """Do nothing: the model is fixed."""

    def _visible(self, ids: Sequence[int]) -> str | None:
        """The text after the last end of a thought; empty if the thought never ends."""
        if self._thought_end.text is None:
            return None
        return self._thought_end.text_after(ids, self._decode)

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
