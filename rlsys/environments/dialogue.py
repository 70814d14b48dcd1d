"""Episodes of several turns: the policy replies, the environment answers, in one chain of segments.

The chain (`_Trunk`) is exactly the token sequence that the engine continued. Sampled ids are kept
unchanged, because text that is decoded and encoded again may give other tokens, whose log-probs are
unknown. Only the answers of the environment are rendered and encoded. They are never trained.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from rlsys.config import DialogueSection
from rlsys.config.base import MAX_SEED
from rlsys.environments.base import EnvironmentClass, RolloutContext
from rlsys.environments.dialogue_report import report_dialogues
from rlsys.environments.seeds import derive_seed
from rlsys.environments.turns import Reply, Turn, TurnEnvironment, TurnSession
from rlsys.errors import EpisodeLost
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import ThoughtEnd
from rlsys.tokenization.tokenizer import eos_ids
from rlsys.types import (
    NO_PARENT,
    Completion,
    Decode,
    Episode,
    EpisodeSeed,
    GenerationRequest,
    Generator,
    Group,
    GroupReport,
    Kind,
    Sample,
    Segment,
    Tokens,
    TurnRecord,
    Verdict,
)

LOST_NOTE_S = 30.0
"""Least seconds between two warnings about lost episodes."""

_log = logging.getLogger(__name__)


def training_episodes(run_seed: int, count: int) -> list[EpisodeSeed]:
    """Return the seeds of the training episodes of a run."""
    return [EpisodeSeed(seed=derive_seed(run_seed, "episode", i) & MAX_SEED) for i in range(count)]


def evaluation_episodes(count: int) -> list[EpisodeSeed]:
    """Return the seeds of the evaluation episodes: 0, 1, …

    They do not depend on the seed of the run, so that all runs are evaluated on the same episodes.
    """
    return [EpisodeSeed(seed=seed) for seed in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueEnvironment(EnvironmentClass):
    """Rolls out groups of dialogues; all episodes of a group begin from the same seed.

    With one seed the environment asks every episode the same questions, so the mean return of the
    group is a baseline for each of them. A subclass implements `create`, which provides the turns,
    and `inputs`.
    """

    turns: TurnEnvironment
    renderer: PromptRenderer
    generator: Generator
    decode: Decode
    """Token ids to text, special tokens dropped."""
    stop_ids: tuple[int, ...]
    thought_end: ThoughtEnd
    """Without a text for a policy without thoughts."""
    group_size: int
    reply_tokens: int
    """Most sampled tokens of a reply."""
    max_length: int
    """Most tokens of the whole trunk."""
    max_turns: int | None
    """Most replies of an episode; None if the environment always ends its episodes."""
    temperature: float
    top_p: float = 1.0
    seed: int
    """Seed of the run; the seed of every request is derived from it."""
    attempts: int
    """How many times an episode is started at most, if it is lost every time."""

    @classmethod
    def over(
        cls, turns: TurnEnvironment, context: RolloutContext, *, max_turns: int | None
    ) -> Self:
        """Return an environment that takes its turns from `turns`, with the settings of the run."""
        settings = context.settings(DialogueSection)
        return cls(
            turns=turns,
            renderer=context.renderer,
            generator=context.generator,
            decode=context.decode,
            stop_ids=eos_ids(context.tokenizer),
            thought_end=ThoughtEnd.resolve(context.tokenizer, settings.think_end),
            group_size=context.group_size,
            reply_tokens=settings.reply_tokens,
            max_length=context.max_length,
            max_turns=max_turns,
            temperature=context.temperature,
            top_p=context.top_p,
            seed=context.seed,
            attempts=settings.attempts,
        )

    async def rollout(self, index: int, task: EpisodeSeed) -> Group:
        """Roll out the group. An episode that was lost in every attempt is missing from it."""
        # All episodes at once: the engines batch their replies, and an episode that waits for its
        # server does not delay the others.
        episodes = await asyncio.gather(
            *(self._episode(index, task.seed, number) for number in range(self.group_size))
        )
        return Group(
            index=index,
            task=task,
            episodes=tuple(episode for episode in episodes if episode is not None),
        )

    def report(self, group: Group, samples: Sequence[Sample]) -> GroupReport:
        """Report returns, accuracy and the lengths of replies."""
        return report_dialogues(group, self.group_size, samples, self.decode)

    async def _episode(self, index: int, seed: int, number: int) -> Episode | None:
        # A lost episode starts again from reset. The state on the server is gone, and a new session
        # could not continue in the middle: the tokens so far are replies to questions that the new
        # session has not asked.
        for attempt in range(self.attempts):
            try:
                async with self.turns.session() as session:
                    return await self._play(session, (index, number, attempt), seed)
            except EpisodeLost as lost:
                count = f"attempt {attempt + 1} of {self.attempts}"
                _losses.warn(f"an episode was lost ({count}): {lost}")
        return None

    async def _play(self, session: TurnSession, path: tuple[int, int, int], seed: int) -> Episode:
        """Play one episode. `path` is (group, episode, attempt), from which seeds are derived."""
        turn = await session.reset(seed)
        trunk = _Trunk(self.renderer.render_first(turn.text, turn.record.shown))
        while not turn.done and (room := self._room(turn, trunk)) > 0:
            completion = await self._sample(trunk, room, path)
            turn = await session.reply(self._reply(completion.token_ids))
            trunk.add_reply(completion, turn)
            # The last observation is left out: no reply follows it, so it would train nothing.
            if not turn.done:
                last = int(completion.token_ids[-1])
                trunk.add_observation(
                    self.renderer.render_next(turn.text, turn.record.shown, last_token=last)
                )
        trunk.add_to_last_reward(await _abandon(session, turn))
        return trunk.episode()

    def _room(self, turn: Turn, trunk: _Trunk) -> int:
        """Return how many tokens the next reply may have; 0 or less ends the episode."""
        if self.max_turns is not None and len(trunk.rewards) == self.max_turns:
            return 0
        room = min(self.reply_tokens, self.max_length - len(trunk.ids))
        return room if turn.remaining is None else min(room, turn.remaining)

    async def _sample(self, trunk: _Trunk, room: int, path: tuple[int, int, int]) -> Completion:
        index, number, attempt = path
        # The attempt is part of the seed, so a second attempt samples other replies. A reply that
        # made the server fail is then not repeated in every attempt.
        request = GenerationRequest(
            token_ids=trunk.ids,
            n=1,
            max_tokens=room,
            stop_token_ids=self.stop_ids,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=derive_seed(self.seed, index, "reply", number, attempt, len(trunk.rewards)),
            engine=trunk.engine,
        )
        ((completion,),) = await self.generator.generate([request])
        return completion

    def _reply(self, token_ids: Tokens) -> Reply:
        ids = token_ids.tolist()
        text = visible = self.decode(ids)
        if self.thought_end.text is not None:
            # If the thought did not end, the whole reply is thought and nothing is visible. If a
            # reply ends a thought more than once, the visible part follows the last end.
            visible = self.thought_end.text_after(ids, self.decode)
        return Reply(text=text, visible=visible, tokens=len(ids))


class _Losses:
    """Logs lost episodes, at most once in LOST_NOTE_S.

    A dead server loses all episodes at once; one warning is enough.
    """

    def __init__(self) -> None:
        self._last_warning = float("-inf")

    def warn(self, sentence: str) -> None:
        """Log the sentence, unless another one was logged less than LOST_NOTE_S ago."""
        now = time.monotonic()
        if now - self._last_warning >= LOST_NOTE_S:
            self._last_warning = now
            _log.warning("%s", sentence)


_losses = _Losses()
"""Shared by all environments of the process, because they may share a server."""


async def _abandon(session: TurnSession, turn: Turn) -> float:
    """Send an empty reply to every question that the episode has no room for; return the rewards.

    Without this, an episode that overflows the context would skip the penalties for its unanswered
    questions, so overflowing would be rewarded.
    """
    earned = 0.0
    for _ in range(turn.unanswered):
        if turn.done:
            break
        turn = await session.reply(Reply(text="", visible="", tokens=0))
        earned += turn.reward
    return earned


class _Trunk:
    """An episode that is still played: its tokens, segments and rewards so far."""

    def __init__(self, prompt: Tokens) -> None:
        self.ids = prompt
        self.engine: int | None = None
        self.rewards: list[float] = []
        self._records: list[TurnRecord] = []
        self._answers: list[int] = []
        self._segments = [Segment(parent=NO_PARENT, cut=0, kind=Kind.PROMPT, token_ids=prompt)]

    def add_reply(self, completion: Completion, turn: Turn) -> None:
        # Later replies go to the same engine: its prefix cache holds the whole chain so far.
        self.engine = completion.engine
        self.rewards.append(turn.reward)
        self._records.append(turn.record)
        self._answers.append(len(self._segments))
        self._append(Kind.ANSWER, completion.token_ids, completion)

    def add_observation(self, token_ids: Tokens) -> None:
        self._append(Kind.OBSERVATION, token_ids, None)

    def add_to_last_reward(self, reward: float) -> None:
        """Add to the reward of the last reply, which left the other questions unanswered."""
        # An episode without any reply has nothing to train, so its reward is dropped.
        if self.rewards:
            self.rewards[-1] += reward

    def episode(self) -> Episode:
        verdicts = [
            _verdict(reward) if record.verdict is None else record.verdict
            for record, reward in zip(self._records, self.rewards, strict=True)
        ]
        return Episode(
            segments=tuple(self._segments),
            scores=np.array(self.rewards, np.float32),
            answer_segments=np.array(self._answers, np.int32),
            # Every reply follows another prefix, so each one is a distinct cut.
            splits=np.arange(len(self._answers), dtype=np.int32),
            verdicts=np.array(verdicts, np.int8),
            turns=tuple(self._records),
        )

    def _append(self, kind: Kind, token_ids: Tokens, sampled: Completion | None) -> None:
        self._segments.append(
            Segment(
                parent=len(self._segments) - 1,
                cut=len(self._segments[-1].token_ids),
                kind=kind,
                token_ids=token_ids,
                logprobs=None if sampled is None else sampled.logprobs,
                versions=None if sampled is None else sampled.versions,
            )
        )
        self.ids = np.concatenate([self.ids, token_ids])


def _verdict(reward: float) -> Verdict:
    """Return the verdict for an environment that does not grade: a positive reward is right."""
    return Verdict.RIGHT if reward > 0 else Verdict.WRONG
