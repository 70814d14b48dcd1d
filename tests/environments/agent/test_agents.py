"""Agents in real processes over real HTTP, with a fake engine: scores, failures, nothing left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest
from agent_play import TOKENIZER, Engine, config_of, environment_of, play
from commands import wait_until

from rlsys.algorithms.samples import build_samples
from rlsys.environments.agent import host
from rlsys.environments.agent.agents import Agents, Result, check_agent
from rlsys.environments.agent.interface import Endpoint, Task
from rlsys.environments.agent.server import ChatServer
from rlsys.environments.agent.session import Session
from rlsys.errors import ConfigError, EngineError
from rlsys.types import Kind

TASK = Task(id="p", text="", answer="", seed=0, budget=64)
TALKING, SILENT = "some_agents", "silent_agents"


def test_an_agent_is_scored_by_its_answer_and_its_replies_are_trained() -> None:
    engine = Engine()
    group, environment = play(engine, agent=f"{TALKING}:twice")
    for episode in group.episodes:
        kinds = [segment.kind for segment in episode.segments]
        assert kinds == [Kind.PROMPT, Kind.ANSWER, Kind.OBSERVATION, Kind.ANSWER]
        assert episode.scores.tolist() == [1.0]
        assert episode.agent == (2, 1, None)
        texts = [TOKENIZER.decode(segment.token_ids) for segment in episode.segments]
        assert texts == [
            "<bos>3+2=<think>",
            "12</think> 5 <eos>",
            "and again=<think>",
            "12</think> 5 <eos>",
        ]
    assert len({request.seed for request in engine.requests}) == 4
    samples = build_samples(group, config_of(agent=f"{TALKING}:twice"))
    assert [a is None for a in samples[0].advantages] == [True, False, True, False]
    report = environment.report(group, samples)
    numbers = {name: values.tolist() for name, values in report.numbers.items()}
    assert numbers["agent/calls"] == [2.0, 2.0]
    assert numbers["agent/failed"] == [0.0, 0.0]
    assert numbers["agent/budget"] == [14 / 64] * 2


def test_a_rewritten_history_is_a_second_branch_of_the_episode() -> None:
    group, _ = play(agent=f"{TALKING}:rewrites")
    episode = group.episodes[0]
    assert episode.agent == (3, 2, None)
    assert episode.scores.tolist() == [0.5]
    segments = episode.segments
    assert [s.parent for s in segments] == [-1, 0, 1, 2, 0, 4]
    assert TOKENIZER.decode(segments[4].token_ids) == "1<eos>12\n<think>"


@pytest.mark.parametrize(
    ("agent", "calls", "limit_s", "words"),
    [
        (f"{TALKING}:raises", 1, 300.0, "exit code 1 (KeyError: 'no such page')"),
        (f"{SILENT}:kills_itself", 0, 300.0, "killed by signal 9"),
        (f"{SILENT}:hangs", 0, 3.0, "took more than 3 s"),
        (f"{SILENT}:returns_nothing", 0, 300.0, "exit code 1 (TypeError: float() argument"),
        (f"{SILENT}:returns_nan", 0, 300.0, "neither an answer nor a reward"),
    ],
)
def test_an_agent_that_fails_scores_0_and_leaves_nothing(
    agent: str, calls: int, limit_s: float, words: str
) -> None:
    before = _sleeping()
    group, environment = play(agent=agent, time_limit_s=limit_s)
    assert [episode.scores.tolist() for episode in group.episodes] == [[0.0], [0.0]]
    for episode in group.episodes:
        assert episode.agent is not None
        assert episode.agent.calls == calls
        assert words in str(episode.agent.failure)
    report = environment.report(group, ())
    assert report.numbers["agent/failed"].tolist() == [1.0, 1.0]
    assert wait_until(lambda: _sleeping() <= before, 60)


def _sleeping() -> set[int]:
    """Processes that agents of tests have started."""
    return {process.pid for process in psutil.process_iter() if _sleeps(process)}


def _sleeps(process: psutil.Process) -> bool:
    try:
        return {"yes", "import time; time.sleep(10_000)"} & set(process.cmdline()) != set()
    except psutil.Error:
        return False


def test_an_agent_without_calls_has_a_score_and_nothing_to_train() -> None:
    group, environment = play(agent=f"{SILENT}:idle")
    assert [episode.scores.tolist() for episode in group.episodes] == [[1.0], [1.0]]
    assert [s.kind for s in group.episodes[0].segments] == [Kind.PROMPT]
    report = environment.report(group, build_samples(group, config_of(agent=f"{SILENT}:idle")))
    assert (report.versions, report.signal) == (None, True)


def test_a_reply_may_be_streamed() -> None:
    group, _ = play(agent=f"{TALKING}:streams")
    assert [episode.agent for episode in group.episodes] == [(1, 1, None)] * 2
    assert group.episodes[0].scores.tolist() == [7.0]


@pytest.mark.parametrize("killed", ["keeper", "host"])
def test_agents_end_with_the_process_that_started_them_and_others_start_again(killed: str) -> None:
    before = _sleeping()
    others = set(psutil.Process().children())  # of tests before

    async def play_on() -> tuple[Result, Result]:
        agents = Agents(f"{SILENT}:hangs", (), 300.0)
        endpoint = Endpoint(base_url="http://127.0.0.1:1/v1", api_key="k", model="policy")
        session = Session(environment_of(agent=f"{SILENT}:hangs")._policy, 0)
        await agents.start()
        (keeper,) = set(psutil.Process().children()) - others
        (host,) = keeper.children()
        running = asyncio.ensure_future(agents.run(TASK, endpoint, session))
        while not _sleeping() - before:
            await asyncio.sleep(0.01)
        started = host.children()
        (keeper if killed == "keeper" else host).kill()
        first = await running
        assert psutil.wait_procs(started, 60)[1] == []
        assert wait_until(lambda: _sleeping() <= before, 60)
        await agents.start()
        agents._limit_s = 0.5
        second = await agents.run(TASK, endpoint, session)
        await agents.close()
        return first, second

    first, second = asyncio.run(play_on())
    assert "process that starts the agents ended" in str(first.failure)
    assert "took more than 0.5 s" in str(second.failure)
    assert set(psutil.Process().children()) <= others


def test_a_budget_is_spent_to_the_last_token_and_then_calls_are_refused() -> None:
    group, _ = play(agent=f"{TALKING}:floods")
    for episode in group.episodes:
        assert episode.sampled_tokens() == 64
        assert episode.scores.tolist() == [10 / 20]  # 7 tokens a reply


def test_a_command_is_an_agent_too(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(
        "import json, os, sys\n"
        "from openai import OpenAI\n"
        "task = json.load(sys.stdin)\n"
        "assert [model.id for model in OpenAI().models.list()] == [os.environ['OPENAI_MODEL']]\n"
        "messages = [{'role': 'user', 'content': task['text']}]\n"
        "OpenAI().chat.completions.create(model='policy', messages=messages)\n"
        "print('some text')\n"
        "print(json.dumps({'reward': 0.25}))\n"
    )
    group, _ = play(command=[sys.executable, str(script)])
    assert [episode.agent for episode in group.episodes] == [(1, 1, None)] * 2
    assert group.episodes[0].scores.tolist() == [0.25]


def test_an_engine_that_fails_ends_the_run_and_not_the_episode() -> None:
    with pytest.raises(EngineError, match="gone"):
        play(Engine(error=EngineError("gone")), agent=f"{TALKING}:twice")


def test_requests_without_the_key_of_an_episode_are_refused() -> None:
    async def ask() -> list[tuple[int, str]]:
        server = ChatServer()
        await server.start()
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                answers = [
                    await client.get(f"{server._url}/models", headers=headers)
                    for headers in ({}, {"Authorization": "Bearer guess"}, {"Authorization": ""})
                ]
            return [(a.status_code, a.json()["error"]["code"]) for a in answers]
        finally:
            await server.close()

    assert asyncio.run(ask()) == [(401, "invalid_api_key")] * 3


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("no_such_module:agent", "No module named 'no_such_module'"),
        ("silent_agents:nobody", "no attribute 'nobody'"),
    ],
)
def test_an_agent_that_cannot_be_imported_is_refused_before_the_run(agent: str, words: str) -> None:
    check_agent(f"{SILENT}:idle")
    with pytest.raises(ConfigError, match=words):
        check_agent(agent)


def test_the_host_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); "
        f"import {host.__name__}; "
        "print([m for m in set(sys.modules) - before if m.partition('.')[0] in "
        "('numpy', 'torch', 'pydantic', 'transformers', 'aiohttp')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
