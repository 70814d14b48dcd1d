"""A client that cuts thoughts as in training, over an OpenAI-compatible server of vLLM.

A thought and its answer are two requests to /v1/completions, both with token ids:

    prompt                                 -> thought, at most the budget
    prompt + thought + forced tokens       -> answers

The forced tokens are those of the budget card, so no text is tokenized again and a cut inside a
word stays where it was. A server with a prefix cache computes the prompt and the thought once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rlsys.endpoints import EndpointFailure, failure_reason, sampled_ids
from rlsys.errors import ModelError
from rlsys.serving.card import BudgetCard

if TYPE_CHECKING:
    from openai import AsyncOpenAI


_STANDARD: Final = ("temperature", "top_p", "max_tokens", "stop")
"""Fields of requests that the client of OpenAI knows; the others are vLLM's own."""


class _Choice(NamedTuple):
    token_ids: tuple[int, ...]
    text: str


class Thought(NamedTuple):
    """The beginning of a thought, or a whole one."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    ended: bool = False
    """True if the model ended the thought itself, so that more tokens cannot follow."""
    broken: bool = False
    """True if it holds an end of sequence without an end of thought; it has no answer."""


class Reply(NamedTuple):
    """A thought within a budget and its answers."""

    thought: Thought
    answers: tuple[str, ...]
    """Header and answer, as they are graded in training. Empty texts stand for answers that break
    the form: after a broken thought, or with a second end of thought."""
    tokens: int
    """Sampled tokens of the thought and of all answers."""


class BudgetedModel:
    """A served model that answers within thinking budgets."""

    def __init__(self, client: AsyncOpenAI, model: str, card: BudgetCard) -> None:
        """`model` is the name under which the server knows the model.

        Raises ModelError if the card is of a run without thoughts.
        """
        if card.cut is None or card.vllm is None:
            raise ModelError(
                f"the budget card of {card.name!r} has no cut, because the run trained dialogues; "
                "use the card of a run with environment.type 'anytime' or 'reflection'"
            )
        self._client, self._model = client, model
        self._cut, self._requests = card.cut, card.vllm

    async def reply(self, prompt: Sequence[int], *, budget: int, answers: int = 1) -> Reply:
        """Think for at most `budget` tokens, then sample `answers` answers.

        Raises EndpointFailure.
        """
        thought = await self.think(prompt, budget=budget)
        texts, tokens = await self.answer(prompt, thought, answers=answers)
        return Reply(thought, texts, len(thought.token_ids) + tokens)

    async def think(
        self,
        prompt: Sequence[int],
        *,
        budget: int,
        before: Thought | None = None,
    ) -> Thought:
        """Return the thought up to `budget` tokens; `before` is its beginning, if there is one.

        Where the end of a thought is several tokens, the server does not see an end that begins in
        `before`, so such a thought goes on to the budget.

        Raises EndpointFailure.
        """
        before = before or Thought()
        left = budget - len(before.token_ids)
        if before.ended or before.broken or left <= 0:
            return before
        fields = {**self._requests.thought, "max_tokens": left}
        (found,) = await self._complete([*prompt, *before.token_ids], 1, fields)
        token_ids = (*before.token_ids, *found.token_ids)
        text = before.text + found.text
        eos = bool(token_ids) and token_ids[-1] in self._cut.eos_ids
        if self._cut.think_end is None:
            # EOS is the only end of such a thought, and no text may follow it.
            return Thought(token_ids[: -1 if eos else None], text, ended=eos)
        ended = self._has_end(token_ids, text)
        return Thought(token_ids, text, ended=ended, broken=eos and not ended)

    async def answer(
        self,
        prompt: Sequence[int],
        thought: Thought,
        *,
        answers: int = 1,
    ) -> tuple[tuple[str, ...], int]:
        """Return `answers` answers after a thought, and the number of their sampled tokens.

        Raises EndpointFailure.
        """
        if thought.broken:
            return ("",) * answers, 0
        forced = self._cut.header_ids if thought.ended else self._cut.cut_ids
        continued = [*prompt, *thought.token_ids, *forced]
        found = await self._complete(continued, answers, self._requests.answer)
        texts = tuple(
            "" if self._has_end(*choice) else self._cut.answer_header + choice.text
            for choice in found
        )
        return texts, sum(len(choice.token_ids) for choice in found)

    def _has_end(self, token_ids: Sequence[int], text: str) -> bool:
        """True if the model ended a thought in this text; see Cut.think_end_ids."""
        end = self._cut.think_end_ids
        if len(end) == 1:
            return end[0] in token_ids
        return self._cut.think_end is not None and self._cut.think_end in text

    async def _complete(
        self, token_ids: Sequence[int], n: int, fields: Mapping[str, object]
    ) -> list[_Choice]:
        from openai import OpenAIError

        known = {name: fields[name] for name in _STANDARD if name in fields}
        extra = {name: value for name, value in fields.items() if name not in _STANDARD}
        arguments: Any = {"model": self._model, "prompt": list(token_ids), "n": n, **known}
        try:
            completion: Any = await self._client.completions.create(**arguments, extra_body=extra)
        except (OpenAIError, ValueError, RecursionError) as error:
            raise EndpointFailure(failure_reason(error)) from error
        choices = getattr(completion, "choices", None)
        found = [_choice(choice) for choice in choices] if isinstance(choices, list) else []
        whole = [choice for choice in found if choice is not None]
        if len(whole) != n:
            raise EndpointFailure(
                f"{len(whole)} of {n} completions came with token ids: {str(completion)[:200]!r}; "
                "the client needs a server of vLLM 0.24 or later"
            )
        return whole


def _choice(choice: Any) -> _Choice | None:
    """Parse one choice of a response, which may have any shape; None without text or token ids."""
    token_ids, text = sampled_ids(choice), getattr(choice, "text", None)
    if not isinstance(text, str) or token_ids is None:
        return None
    return _Choice(tuple(token_ids), text)
