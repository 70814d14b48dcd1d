"""An environment and a method of your own, in one file outside of rlsys.

The environment: the model replies; where the reply is wrong, it is told so and replies once more.
A right first reply scores 1, a right second one 1/2.

    prompt ── reply ── observation ── second reply        (one trunk; only replies are trained)

The method: RLOO, a score against the mean of the other episodes of its group.

    rlsys train examples/two_tries/two_tries.yaml

two_tries.yaml names both classes by their import path, so nothing in rlsys has to be changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt

from rlsys.algorithms.tree_samples import whole_episode
from rlsys.config import AlgorithmConfig, EnvironmentConfig, RunConfig
from rlsys.environments.base import InputContext, ProblemEnvironment
from rlsys.environments.seeds import derive_seed
from rlsys.tokenization.tokenizer import encode, eos_ids
from rlsys.types import (
    NO_PARENT,
    Completion,
    Episode,
    GenerationRequest,
    GradingRequest,
    Group,
    Kind,
    Problem,
    Sample,
    Segment,
    Tokens,
    Verdict,
)


class TwoTriesConfig(EnvironmentConfig):
    """The `environment` section of two_tries.yaml."""

    first_tokens: PositiveInt = 64
    """Most sampled tokens of the first reply."""
    second_tokens: PositiveInt = 64
    """Most sampled tokens of the second reply."""
    observation: str = "\nThat is wrong. Once more: "
    """Inserted between the replies. For a chat model it must close the model's turn and open the
    next one, in the words of its chat template."""
    second_score: float = 0.5
    """Score of a right second reply."""

    @property
    def longest_episode(self) -> int:
        """Most sampled tokens of an episode."""
        return self.first_tokens + self.second_tokens


class TwoTries(ProblemEnvironment):
    """Rolls out groups of two tries."""

    Config = TwoTriesConfig

    @classmethod
    def tokens_after_prompt(cls, context: InputContext) -> int:
        """Both replies and the observation between them must fit behind a prompt."""
        settings = context.settings(TwoTriesConfig)
        return settings.longest_episode + len(encode(context.tokenizer, settings.observation))

    async def rollout(self, index: int, task: Problem) -> Group:
        """Sample all first replies, grade them, and let the wrong ones try again."""
        context, settings = self.context, self.context.settings(TwoTriesConfig)
        prompt = context.renderer.render(task)
        observation = np.array(encode(context.tokenizer, settings.observation), np.int32)
        (firsts,) = await context.generator.generate(
            [self._request(prompt, settings.first_tokens, (index, "first"), context.group_size)]
        )
        verdicts = await self._grade(task, [first.token_ids for first in firsts])
        wrong = [i for i, verdict in enumerate(verdicts) if verdict is not Verdict.RIGHT]
        seconds = await context.generator.generate(
            [
                self._request(
                    np.concatenate([prompt, firsts[i].token_ids, observation]),
                    settings.second_tokens,
                    (index, "second", i),
                    engine=firsts[i].engine,  # which has the first reply in its prefix cache
                )
                for i in wrong
            ]
        )
        tried = {i: second for i, (second,) in zip(wrong, seconds, strict=True)}
        # What was inserted may open a box that the reply closes, so both are graded together.
        again = await self._grade(
            task, [np.concatenate([observation, tried[i].token_ids]) for i in wrong]
        )
        last = dict(enumerate(verdicts)) | dict(zip(wrong, again, strict=True))
        return Group(
            index=index,
            task=task,
            episodes=tuple(
                _episode(prompt, first, observation, tried.get(i), last[i], settings.second_score)
                for i, first in enumerate(firsts)
            ),
        )

    def _request(
        self,
        token_ids: Tokens,
        max_tokens: int,
        path: Sequence[int | str],
        n: int = 1,
        engine: int | None = None,
    ) -> GenerationRequest:
        return GenerationRequest(
            token_ids=token_ids,
            n=n,
            max_tokens=max_tokens,
            stop_token_ids=eos_ids(self.context.tokenizer),
            temperature=self.context.temperature,
            top_p=self.context.top_p,
            # From the place of the request alone, so that the same run samples the same tokens.
            seed=derive_seed(self.context.seed, *path),
            engine=engine,
        )

    async def _grade(self, problem: Problem, replies: Sequence[Tokens]) -> list[Verdict]:
        texts = [self.context.decode(reply.tolist()) for reply in replies]
        return await self.context.grader.grade([GradingRequest(t, problem.answer) for t in texts])


def _episode(
    prompt: Tokens,
    first: Completion,
    observation: Tokens,
    second: Completion | None,
    verdict: Verdict,
    second_score: float,
) -> Episode:
    """One trunk of segments with one score: that of its last reply."""
    segments = [
        Segment(parent=NO_PARENT, cut=0, kind=Kind.PROMPT, token_ids=prompt),
        Segment.sampled(first, parent=0, cut=len(prompt), kind=Kind.ANSWER),
    ]
    if second is not None:
        end = len(first.token_ids)
        segments.append(Segment(parent=1, cut=end, kind=Kind.OBSERVATION, token_ids=observation))
        segments.append(Segment.sampled(second, parent=2, cut=len(observation), kind=Kind.ANSWER))
    score = (verdict is Verdict.RIGHT) * (1.0 if second is None else second_score)
    return Episode(
        segments=tuple(segments),
        scores=np.array([score], np.float32),
        answer_segments=np.array([len(segments) - 1], np.int32),
        splits=np.array([0], np.int32),
        verdicts=np.array([verdict], np.int8),
    )


class LeaveOneOutConfig(AlgorithmConfig):
    """The `algorithm` section of two_tries.yaml: RLOO has no settings."""


class LeaveOneOut:
    """RLOO (arXiv 2402.14740, Section 3)."""

    Config = LeaveOneOutConfig

    @staticmethod
    def samples(group: Group, config: RunConfig) -> tuple[Sample, ...]:
        """One advantage on all tokens that an episode sampled."""
        advantages_G = leave_one_out([float(e.scores[0]) for e in group.episodes])
        return tuple(map(whole_episode, group.episodes, advantages_G))


def leave_one_out(scores: Sequence[float]) -> NDArray[np.float64]:
    """Return every score minus the mean of the other G - 1 scores, float64[G].

    Example: leave_one_out([1, 0, 0]) is [1, -0.5, -0.5]
    """
    scores_G = np.asarray(scores, dtype=np.float64)
    others_G: NDArray[np.float64] = (scores_G.sum() - scores_G) / (len(scores_G) - 1)
    return scores_G - others_G
