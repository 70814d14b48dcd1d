"""Dialogues of the economics environment with a scripted policy: what is sampled is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scripted import sample

from rlsys.algorithms.samples import build_samples
from rlsys.config import PromptConfig, RunConfig
from rlsys.config.economics import ArithmeticCorpus, EconomicsConfig
from rlsys.environments import dialogue
from rlsys.environments.dialogue import DialogueEnvironment, evaluation_episodes, training_episodes
from rlsys.environments.dialogue_report import report_dialogues
from rlsys.environments.economics.counting import load_tokenizer as load_counter
from rlsys.environments.economics.errors import LedgerError
from rlsys.environments.economics.ledger import settle_group
from rlsys.environments.economics.training import SharedBudgetEnvironment
from rlsys.environments.economics.turns import EconomicsTurns
from rlsys.environments.turns import Reply, Turn, TurnEnvironment, TurnSession
from rlsys.errors import EpisodeLost
from rlsys.grading.compare import decide, extract_answer
from rlsys.tokenization.prompts import PromptRenderer
from rlsys.tokenization.think import ThoughtEnd
from rlsys.tokenization.tokenizer import encode, eos_ids, load_tokenizer
from rlsys.types import Completion, Episode, GenerationRequest, GradingRequest, Group, Kind, Verdict

TOKENIZER = load_tokenizer("tiny")
TEMPLATE = "{remaining}/{questions_remaining}:{problem}"


class Solver:
    """Answers right, in a thought of four tokens, and notes what it was asked."""

    def __init__(self, thought: str = "12;4") -> None:
        self.requests: list[GenerationRequest] = []
        self._thought = thought

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        self.requests += requests
        return [[self._complete(request)] for request in requests]

    def _complete(self, request: GenerationRequest) -> Completion:
        question = TOKENIZER.decode(request.token_ids).rpartition(":")[2].partition("=")[0]
        written = f"{self._thought}</think>\\boxed{{{eval(question)}}}"
        ids = [*encode(TOKENIZER, written), TOKENIZER.eos_token_id]
        return sample(request, ids, engine=1)


class PureGrader:
    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        verdicts = [decide(extract_answer(r.response), r.gold) for r in requests]
        return [Verdict.INVALID if v is None else v for v in verdicts]


def turns_of(problems: int = 3, total_budget: int = 90, **settings: Any) -> EconomicsTurns:
    config = EconomicsConfig(
        problems=problems,
        total_budget=total_budget,
        corpus=ArithmeticCorpus(terms=(2, 4)),
        **settings,
    )
    return EconomicsTurns(config, load_counter("tiny"), PureGrader())


def environment_of(
    turns: TurnEnvironment, solver: Solver | None = None, **settings: Any
) -> DialogueEnvironment:
    values: dict[str, Any] = {
        "group_size": 2,
        "reply_tokens": 32,
        "max_length": 1024,
        "max_turns": None,
        "attempts": 3,
        **settings,
    }
    return SharedBudgetEnvironment(
        turns=turns,
        renderer=PromptRenderer(TOKENIZER, PromptConfig(template=TEMPLATE)),
        generator=solver or Solver(),
        decode=lambda ids: TOKENIZER.decode(ids, skip_special_tokens=True),
        stop_ids=eos_ids(TOKENIZER),
        thought_end=ThoughtEnd.resolve(TOKENIZER, "</think>"),
        temperature=1.0,
        seed=0,
        **values,
    )


def rollout(environment: DialogueEnvironment) -> Group:
    return asyncio.run(environment.rollout(0, training_episodes(0, 1)[0]))


def test_the_trunk_is_exactly_what_the_engine_saw() -> None:
    solver = Solver()
    group = rollout(environment_of(turns_of(), solver))
    episode = group.episodes[0]
    kinds = [segment.kind for segment in episode.segments]
    assert kinds == [
        Kind.PROMPT,
        *(Kind.ANSWER, Kind.OBSERVATION, Kind.ANSWER, Kind.OBSERVATION, Kind.ANSWER),
    ]
    mine = [r for r in solver.requests if r.token_ids.tolist() == _trunk(episode, 4)]
    assert len(mine) == 2  # both episodes of the group were told the same by the same replies
    assert mine[0].engine == 1  # where its prefix is cached
    assert mine[0].seed != mine[1].seed


def _trunk(episode: Episode, segments: int) -> list[int]:
    return [t for s in episode.segments[: segments + 1] for t in s.token_ids.tolist()]


def test_prompts_show_the_budget_and_the_reply_keeps_its_own_end() -> None:
    episode = rollout(environment_of(turns_of())).episodes[0]
    texts = [TOKENIZER.decode(segment.token_ids) for segment in episode.segments]
    assert texts[0].startswith("<bos>90/3:")
    spent = len(episode.segments[1].token_ids)
    assert texts[1].endswith("<eos>")
    assert texts[2].startswith(f"{90 - spent}/2:")  # no second end of turn before it
    assert texts[2].endswith("=<think>")


def test_a_reply_that_was_cut_off_gets_the_templates_end_of_turn() -> None:
    episode = rollout(environment_of(turns_of(), Solver("1" * 50), reply_tokens=20)).episodes[0]
    assert TOKENIZER.decode(episode.segments[2].token_ids).startswith("<eos>")
    assert episode.verdicts.tolist() == [Verdict.WRONG] * 3  # its thought never ended


def test_a_box_inside_the_thought_is_no_answer() -> None:
    solver = Solver()
    right = rollout(environment_of(turns_of(), solver)).episodes[0]
    assert right.verdicts.tolist() == [Verdict.RIGHT] * 3
    hidden = environment_of(turns_of(), solver)
    visible = hidden._reply(np.array(encode(TOKENIZER, "\\boxed{5}</think>none"), np.int32)).visible
    assert visible == "none"


def test_every_sampled_token_is_charged_and_the_budget_ends_the_episode() -> None:
    group = rollout(environment_of(turns_of(problems=5, total_budget=40)))
    episode = group.episodes[0]
    charged = [turn.charged or 0 for turn in episode.turns]
    lengths = [len(s.token_ids) for s in episode.segments if s.kind is Kind.ANSWER]
    assert charged == lengths
    assert sum(charged) <= 40
    assert len(episode.scores) < 5


def test_books_are_settled_against_what_is_trained() -> None:
    config = RunConfig.model_validate(
        {"environment": {"type": "economics"}, "algorithm": {"method": "turn_grpo"}}
    )
    group = rollout(environment_of(turns_of()))
    samples = build_samples(group, config)
    settle_group(group, samples)
    assert [a is None for a in samples[0].advantages] == [True, False] * 3
    short = replace(samples[0], advantages=(None,) * 6)
    settle_group(group, [short, samples[1]])  # all masked, and said to be
    wrong = replace(
        samples[0], advantages=tuple(None if a is None else a[1:] for a in samples[0].advantages)
    )
    with pytest.raises(LedgerError, match="answer 0"):
        settle_group(group, [wrong, samples[1]])


def test_the_context_ends_an_episode_that_outgrows_it() -> None:
    group = rollout(environment_of(turns_of(), max_length=40))
    assert all(sum(len(s.token_ids) for s in e.segments) <= 40 + 12 for e in group.episodes)
    assert all(len(e.scores) < 3 for e in group.episodes)


def test_an_episode_that_outgrows_the_context_pays_for_what_it_never_reached() -> None:
    endless = Solver("1" * 50)  # its thoughts never end: every answer is wrong
    whole = rollout(environment_of(turns_of(), endless, reply_tokens=20))
    short = rollout(environment_of(turns_of(), endless, reply_tokens=20, max_length=40))
    assert [len(e.scores) for e in (*whole.episodes, *short.episodes)] == [3, 3, 1, 1]
    assert short.episodes[0].scores.sum() == pytest.approx(whole.episodes[0].scores.sum())


def test_an_environment_that_may_never_end_is_left_after_so_many_turns() -> None:
    whole = rollout(environment_of(turns_of())).episodes[0]
    group = rollout(environment_of(Endless(), max_turns=2))
    for episode in group.episodes:
        assert episode.scores.tolist() == whole.scores[:2].tolist()  # nothing for the third


class Endless:
    """Charges nothing for what an episode leaves unanswered."""

    @asynccontextmanager
    async def session(self) -> AsyncIterator[TurnSession]:
        async with turns_of().session() as session:
            yield EndlessSession(session)


class EndlessSession:
    def __init__(self, session: TurnSession) -> None:
        self._session = session

    async def reset(self, seed: int) -> Turn:
        return (await self._session.reset(seed))._replace(unanswered=0)

    async def reply(self, reply: Reply) -> Turn:
        return (await self._session.reply(reply))._replace(unanswered=0)


class Failing:
    """Loses the first so many sessions."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self._turns = turns_of()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[TurnSession]:
        if self.failures:
            self.failures -= 1
            raise EpisodeLost("gone")
        async with self._turns.session() as session:
            yield session


def test_a_lost_episode_is_begun_anew_and_at_last_missing() -> None:
    assert len(rollout(environment_of(Failing(2))).episodes) == 2
    group = rollout(environment_of(Failing(5), attempts=3))
    assert len(group.episodes) == 1
    report = report_dialogues(group, 2, (), lambda ids: TOKENIZER.decode(ids))
    assert report.numbers["episodes/lost"].tolist() == [0.0, 1.0]


def test_a_second_attempt_does_not_draw_what_the_first_one_drew() -> None:
    class LosesTheFirstReply:
        def __init__(self) -> None:
            self.sessions = 0

        @asynccontextmanager
        async def session(self) -> AsyncIterator[TurnSession]:
            self.sessions += 1
            async with turns_of().session() as session:
                yield BrokenSession(session) if self.sessions == 1 else session

    class BrokenSession(EndlessSession):
        async def reply(self, reply: Reply) -> Turn:
            raise EpisodeLost("gone")

    solver = Solver()
    group = rollout(environment_of(LosesTheFirstReply(), solver, group_size=1))
    assert len(group.episodes) == 1
    lost, first, *_ = solver.requests
    assert lost.token_ids.tolist() == first.token_ids.tolist()
    seeds = [request.seed for request in solver.requests]
    assert len(seeds) == len(set(seeds)) == 4


@pytest.mark.parametrize(("pause_s", "said"), [(30.0, 1), (0.0, 5)])
def test_why_episodes_are_lost_is_said_but_not_all_the_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pause_s: float, said: int
) -> None:
    monkeypatch.setattr(dialogue, "LOST_NOTE_S", pause_s)
    monkeypatch.setattr(dialogue, "_losses", dialogue._Losses())
    rollout(environment_of(Failing(5), attempts=3))
    assert len(caplog.messages) == said
    assert caplog.messages[0] == "an episode was lost (attempt 1 of 3): gone"


def test_the_report_tells_return_accuracy_and_tokens_by_type() -> None:
    group = rollout(environment_of(turns_of()))
    report = report_dialogues(group, 2, (), lambda ids: TOKENIZER.decode(ids))
    assert report.scores_G.tolist() == [1.0, 1.0]
    assert report.numbers["answered"].tolist() == [1.0, 1.0]
    assert report.versions == (3, 4)
    by_type = {name: v for name, v in report.numbers.items() if name.startswith("tokens/")}
    assert sum(map(len, by_type.values())) == 6
    turns: Any = report.example["turns"]
    assert turns[0]["verdict"] == "right"


def test_seeds_decide_the_questions() -> None:
    turns = turns_of()
    first, again, other = (turns.begin(seed).questions for seed in (7, 7, 8))
    assert first == again != other
    assert len({problem.id for problem in training_episodes(0, 50)}) == 50
    assert [problem.id for problem in evaluation_episodes(3)] == ["0", "1", "2"]
