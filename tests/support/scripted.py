"""A generator and a grader for tests without an engine. Stop tokens and limits are honoured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat

import numpy as np

from rlsys.environments.anytime import AnytimeEnvironment
from rlsys.environments.thoughts import ThoughtSampler
from rlsys.tokenization.think import ThinkTokens, ThoughtEnd
from rlsys.types import (
    Completion,
    GenerationRequest,
    Generator,
    Grader,
    GradingRequest,
    Problem,
    Tokens,
    Verdict,
)


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


EOS, END, CLOSING, HEADER, RIGHT, OTHER, WAIT = 1, 2, 3, 4, 5, 6, 7
RAMBLING = 99
"""What the scripted model writes after its script, until a stop token or a limit ends it."""
THINK = ThinkTokens(
    end=ThoughtEnd(text="end", token_ids=np.array([END], np.int32), decode=decode),
    eos_ids=(EOS,),
    closing_ids=np.array([CLOSING], np.int32),
    header_ids=np.array([HEADER], np.int32),
)
PROMPT = np.array([10, 11, 12], np.int32)

Answer = Callable[[GenerationRequest], Sequence[int]]


def sample(
    request: GenerationRequest, script: Sequence[int], *, engine: int = 0, cached: int = 0
) -> Completion:
    """What an engine samples from a model that writes `script` and then rambles on."""
    written: list[int] = []
    for token in chain(script, repeat(RAMBLING)):
        written.append(token)
        stopped = token in request.stop_token_ids
        if stopped or len(written) == request.max_tokens:
            break
    return Completion(
        token_ids=np.array(written, np.int32),
        logprobs=-np.ones(len(written), np.float32),
        stopped=stopped,
        versions=(3, 4),
        engine=engine,
        cached_tokens=cached,
        cache_block=2,
    )


class ScriptedGenerator:
    """Writes the scripted thoughts after the prompt of the first request, and answers elsewhere."""

    def __init__(
        self, thoughts: Sequence[Sequence[int]], answer: Answer, *, engine: int = 1, cached: int = 4
    ) -> None:
        self._thoughts = thoughts
        self._answer = answer
        self._engine = engine
        self._cached = cached
        self.requests: list[GenerationRequest] = []
        self.thoughts: list[Completion] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        self.requests.extend(requests)
        return [self._thoughts_of(r) if self._is_prompt(r) else self._answers(r) for r in requests]

    def _is_prompt(self, request: GenerationRequest) -> bool:
        return np.array_equal(request.token_ids, self.requests[0].token_ids)

    def _thoughts_of(self, request: GenerationRequest) -> list[Completion]:
        """The next thoughts of the script."""
        begin = len(self.thoughts)
        scripts = self._thoughts[begin : begin + request.n]
        assert len(scripts) == request.n
        self.thoughts += [sample(request, script, engine=self._engine) for script in scripts]
        return self.thoughts[begin:]

    def _answers(self, request: GenerationRequest) -> list[Completion]:
        answer = self._answer(request)
        return [sample(request, answer, engine=self._engine, cached=self._cached)] * request.n


class RightIfItSaysSo:
    """RIGHT where the text has the token 5; records what it was asked."""

    def __init__(self) -> None:
        self.asked: list[GradingRequest] = []

    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        self.asked.extend(requests)
        return [
            Verdict.RIGHT if str(RIGHT) in r.response.split() else Verdict.WRONG for r in requests
        ]


class FixedPrompt:
    """A renderer whose every prompt is PROMPT."""

    def render(self, problem: Problem) -> Tokens:
        return PROMPT


def thinker(
    generator: Generator, group_size: int, grader: Grader | None = None
) -> AnytimeEnvironment:
    """Budgets of 2, 4 and 6 tokens, with 2 answers of at most 5 tokens at each."""
    return AnytimeEnvironment(
        sampler=ThoughtSampler(
            think=THINK,
            decode=decode,
            temperature=1.0,
            generator=generator,
            grader=grader or RightIfItSaysSo(),
        ),
        renderer=FixedPrompt(),  # type: ignore[arg-type]
        budgets=(2, 4, 6),
        answers=2,
        answer_tokens=5,
        group_size=group_size,
        seed=7,
    )
