"""Environments behind a URL: real servers that are full, killed, restarted or frozen."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from economics_server import Server, arithmetic, free_port

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.counting import WORDS
from rlsys.environments.economics.dialect import EconomicsDialect
from rlsys.environments.economics.grading import shared_grader
from rlsys.environments.economics.turns import EconomicsTurns
from rlsys.environments.openenv.dialects import TextDialect
from rlsys.environments.openenv.remote import RemoteEnvironment
from rlsys.environments.turns import Reply, Turn, TurnEnvironment
from rlsys.errors import ConfigError, EpisodeLost
from rlsys.types import GradingRequest, TurnRecord, Verdict

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Holder]:
    """Serves two sessions at once and trusts its clients; tests may kill and restart it."""
    holder = Holder()
    yield holder
    holder.server.stop()


class Holder:
    """A server that comes back under the same URL."""

    def __init__(self) -> None:
        self.port = free_port()
        self.start()

    def start(self) -> None:
        self.server = Server(
            port=self.port,
            ECONOMICS_TRUSTED="true",
            ECONOMICS_REVEAL_TYPE="true",
            ECONOMICS_MAX_SESSIONS="2",
            ECONOMICS_PROBLEMS="3",
        )

    @property
    def url(self) -> str:
        return self.server.url

    def kill(self) -> None:
        self.server.process.kill()
        self.server.process.wait()


def economics(url: str, **settings: Any) -> RemoteEnvironment:
    dialect = EconomicsDialect(reset_options={"total_budget": 300})
    return RemoteEnvironment(url, dialect, **settings)


def right(turn: Turn, tokens: int = 20, thought: str = "") -> Reply:
    visible = f"\\boxed{{{arithmetic(turn.text)}}}"
    return Reply(text=f"{thought}{visible}", visible=visible, tokens=tokens)


async def play(environment: TurnEnvironment, seed: int) -> list[Turn]:
    """Answer everything right; return all turns."""
    async with environment.session() as session:
        turns = [await session.reset(seed)]
        while not turns[-1].done:
            turns.append(await session.reply(right(turns[-1])))
        return turns


def test_sampled_ids_are_charged_by_a_server_that_trusts(server: Holder) -> None:
    first, second, third, last = asyncio.run(play(economics(server.url), seed=5))
    assert (first.remaining, second.remaining, last.remaining) == (300, 280, 240)
    assert (first.reward, first.done, last.done) == (0.0, False, True)
    # 1 + 0.1 * (1 - 20/100), and at the end 0.5 * 3/3.
    assert [second.reward, third.reward, last.reward] == pytest.approx([1.08, 1.08, 1.58])
    assert second.unanswered == 2
    assert second.record == TurnRecord(
        shown={
            "remaining": 280.0,
            "questions_remaining": 2.0,
            "per_question": 140.0,
            "number": 2.0,
            "problems": 3.0,
            "total_budget": 300.0,
        },
        verdict=Verdict.RIGHT,
        charged=20,
        end_reward=0.0,
        question=first.text,
        type=second.record.type,
        problems=3,
        total_budget=300,
    )
    assert second.record.type is not None
    assert second.record.type.startswith("arithmetic")


def test_nothing_may_be_answered(server: Holder) -> None:
    async def empty(environment: TurnEnvironment) -> list[Turn]:
        async with environment.session() as session:
            turns = [await session.reset(5)]
            while not turns[-1].done:
                turns.append(await session.reply(Reply(text="", visible="", tokens=0)))
            return turns

    turns = asyncio.run(empty(economics(server.url)))
    assert [turn.reward for turn in turns[1:]] == pytest.approx([-0.1] * 3)


def test_a_thought_is_never_graded_by_a_server_that_trusts(server: Holder) -> None:
    async def unfinished() -> Turn:
        async with economics(server.url).session() as session:
            turn = await session.reset(5)
            thought = f"so \\boxed{{{arithmetic(turn.text)}}}"
            return await session.reply(Reply(text=thought, visible="", tokens=7))

    turn = asyncio.run(unfinished())
    assert (turn.record.verdict, turn.record.charged) == (Verdict.WRONG, 7)


def test_eight_episodes_on_two_sessions_all_finish(server: Holder) -> None:
    async def eight() -> list[list[Turn]]:
        environment = economics(server.url)
        return await asyncio.gather(*(play(environment, seed) for seed in range(8)))

    episodes = asyncio.run(asyncio.wait_for(eight(), 200))
    assert [[t.record.verdict for t in turns[1:]] for turns in episodes] == [
        [Verdict.RIGHT] * 3
    ] * 8


class LocalGrader:
    async def grade(self, requests: Sequence[GradingRequest]) -> list[Verdict]:
        return [shared_grader()(request) for request in requests]


def test_turns_from_afar_are_those_of_this_process(server: Holder) -> None:
    here = EconomicsTurns(EconomicsConfig(problems=3, total_budget=300), WORDS, LocalGrader())
    assert asyncio.run(play(economics(server.url), 8)) == asyncio.run(play(here, 8))


def test_no_reply_of_the_own_policy_is_too_long() -> None:
    config = EconomicsConfig(problems=1, total_budget=300, max_response_characters=10)

    async def play_long() -> Turn:
        async with EconomicsTurns(config, WORDS, LocalGrader()).session() as session:
            await session.reset(1)
            return await session.reply(Reply("x" * 11, "x" * 11, 5))

    turn = asyncio.run(play_long())
    assert turn.done and turn.record.charged == 5


def test_a_server_that_counts_by_itself_is_refused_without_a_tokenizer() -> None:
    counting = Server(ECONOMICS_TOKENIZERS="[tiny]")
    named = EconomicsDialect(reset_options={"tokenizer_name": "tiny"})
    try:
        with pytest.raises(ConfigError, match=r"counts text itself \(in .*tokenizer_name"):
            asyncio.run(economics(counting.url).check())
        asyncio.run(RemoteEnvironment(counting.url, named).check())
    finally:
        counting.stop()


def test_sixty_four_episodes_at_once_on_a_server_that_counts_by_itself() -> None:
    counting = Server()

    async def thinking(environment: TurnEnvironment, seed: int) -> list[Turn]:
        async with environment.session() as session:
            turns = [await session.reset(seed)]
            while not turns[-1].done:
                reply = right(turns[-1], thought=r"<think>\boxed{0} or</think>")
                turns.append(await session.reply(reply))
            return turns

    async def all_at_once() -> list[list[Turn]]:
        environment = economics(counting.url)
        return await asyncio.gather(*(thinking(environment, seed) for seed in range(64)))

    try:
        episodes = asyncio.run(asyncio.wait_for(all_at_once(), 200))
    finally:
        counting.stop()
    for turns in episodes:
        assert [turn.record.verdict for turn in turns[1:]] == [Verdict.RIGHT] * 10
        # Two words, thought included, at 1.33 tokens, whatever the client sampled.
        assert [turn.record.counted for turn in turns[1:]] == [2] * 10
        assert [turn.remaining for turn in turns[:2]] == [300, 298]


def test_no_more_sessions_than_leases(server: Holder) -> None:
    async def run() -> list[Turn]:
        environment = economics(server.url, max_sessions=1)
        async with environment.session():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3), environment.session():
                    raise AssertionError("two leases of one")
        with pytest.raises(KeyError):
            async with environment.session():
                raise KeyError("the caller's own")
        return await asyncio.wait_for(play(environment, seed=1), 200)

    assert asyncio.run(run())[-1].done


def test_a_killed_server_loses_the_episode_and_serves_again(server: Holder) -> None:
    async def run() -> list[Turn]:
        environment = economics(server.url)
        async with environment.session() as session:
            turn = await session.reset(1)
            server.kill()
            with pytest.raises(EpisodeLost, match=f"the environment at {server.url} failed at a"):
                await session.reply(right(turn))
            # Nor does it go on in a session that never saw the episode begin.
            restarted = asyncio.create_task(asyncio.to_thread(server.start))
            await asyncio.sleep(0)
            with pytest.raises(EpisodeLost, match="the session has failed before"):
                await session.reply(right(turn))
        # Tried again and again while the new server starts.
        turns = await asyncio.wait_for(play(environment, seed=1), 200)
        await restarted
        return turns

    assert asyncio.run(run())[-1].done


def test_a_server_that_stays_away_loses_the_episode(server: Holder) -> None:
    async def run() -> None:
        environment = economics(f"http://127.0.0.1:{free_port()}", patience_s=0.5)
        async with environment.session():
            raise AssertionError("there is no server")

    with pytest.raises(EpisodeLost, match=r"no session could be opened at http.* for 0.5 s"):
        asyncio.run(run())


def test_a_frozen_server_is_waited_for_so_long_and_no_longer(server: Holder) -> None:
    async def run() -> list[Turn]:
        environment = economics(server.url, message_timeout_s=3)
        async with environment.session() as session:
            turn = await session.reset(1)
            server.server.process.send_signal(signal.SIGSTOP)
            try:
                with pytest.raises(EpisodeLost, match=r"no answer within 3 s"):
                    await session.reply(right(turn))
            finally:
                server.server.process.send_signal(signal.SIGCONT)
        return await asyncio.wait_for(play(environment, seed=1), 200)

    assert asyncio.run(run())[-1].done


def test_a_refused_action_loses_the_episode_with_the_servers_words(server: Holder) -> None:
    async def run() -> None:
        async with economics(server.url).session() as session:
            turn = await session.reset(1)
            await session.reply(right(turn, tokens=301))

    with pytest.raises(EpisodeLost, match="EXECUTION_ERROR: sampled_tokens 301 exceeds"):
        asyncio.run(run())


def test_a_check_finds_no_fault(server: Holder) -> None:
    asyncio.run(economics(server.url).check())


def test_a_check_of_a_full_server_waits_for_nobody(
    server: Holder, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        environment = economics(server.url, max_sessions=2)
        async with environment.session(), environment.session():
            await asyncio.wait_for(environment.check(), 60)

    asyncio.run(run())
    assert "is full" in caplog.text


def test_a_check_tells_of_a_reset_that_is_refused(server: Holder) -> None:
    dialect = EconomicsDialect(reset_options={"total_budget": 5})
    with pytest.raises(ConfigError, match=r"total_budget 5 is less .*\(total_budget\) or the"):
        asyncio.run(RemoteEnvironment(server.url, dialect).check())


def test_a_check_tells_of_fields_that_are_not_there(server: Holder) -> None:
    for dialect, sentence in (
        (TextDialect(observation_field="board", action_field="response"), "observation .*'board'"),
        (TextDialect(observation_field="question", action_field="move"), "action .*'move'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            asyncio.run(RemoteEnvironment(server.url, dialect).check())


@pytest.fixture(scope="module")
def scaffold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The environment that `openenv init` writes, as it comes: one session, no end, no budget."""
    folder = tmp_path_factory.mktemp("scaffold")
    command = [sys.executable, "-m", "openenv.cli", "init", "parrot", "-o", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    served = Server(folder=folder / "parrot")
    yield served
    served.stop()


def test_other_peoples_environment(scaffold: Server) -> None:
    dialect = TextDialect(observation_field="echoed_message", action_field="message")
    environment = RemoteEnvironment(scaffold.url, dialect)

    async def episode(words: str) -> tuple[Turn, Turn]:
        async with environment.session() as session:
            ready = await session.reset(seed=3)
            reply = Reply(text=f"<think>hm</think>{words}", visible=words, tokens=9)
            return ready, await session.reply(reply)

    async def several() -> list[tuple[Turn, Turn]]:
        await environment.check()
        return await asyncio.gather(*map(episode, ["hello", "a longer message", "x"]))

    episodes = asyncio.run(several())
    for ready, _ in episodes:
        assert (ready.text, ready.reward) == ("Parrot environment ready!", 0.0)
        assert (ready.done, ready.remaining) == (False, None)
    assert [turn.text for _, turn in episodes] == ["hello", "a longer message", "x"]
    assert [turn.reward for _, turn in episodes] == pytest.approx([0.5, 1.0, 0.1])
    assert [turn.record.shown["message_length"] for _, turn in episodes] == [5.0, 16.0, 1.0]
