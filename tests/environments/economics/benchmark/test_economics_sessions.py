"""Many sessions at once, sessions that end, and a server with settings of its own."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import requests
from economics_server import Server, arithmetic, code, reset, session, step
from websockets.exceptions import ConnectionClosed

from rlsys.environments.economics.benchmark.sessions import (
    OpenSession,
    ResetArguments,
    served_sessions,
)
from rlsys.environments.economics.models import EconomicsObservation
from rlsys.errors import EpisodeLost

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    served = Server()
    yield served
    served.stop()


SESSIONS, EPISODES = 16, 20


def play_session(url: str, number: int) -> list[tuple[str, object, object]]:
    """Play episodes in a pattern of the session's own; return the wrong values in its states."""
    faults: list[tuple[str, object, object]] = []
    with session(url) as ask:
        for episode in range(EPISODES):
            sent = {"seed": 1000 * number + episode, "episode_id": f"{number}-{episode}"}
            answer = reset(ask, total_budget=400 + number, **sent)
            right = spent = 0
            for question in range(10):
                gold = arithmetic(answer["data"]["observation"]["question"])
                correct, words = (number + episode + question) % 3 > 0, 1 + (number + question) % 5
                answer = step(ask, "so " * (words - 1) + f"\\boxed{{{gold + (not correct)}}}")
                right += correct
                spent += int(1.33 * words)
            state = ask({"type": "state"})["data"]
            expected = sent | {
                "total_budget": 400 + number,
                "total_correct": right,
                "spent_budget": spent,
                "stop_reason": "answered",
            }
            faults += [(k, v, state[k]) for k, v in expected.items() if state[k] != v]
    return faults


def test_sessions_are_isolated(server: Server) -> None:
    with ThreadPoolExecutor(SESSIONS) as pool:
        faults = list(pool.map(lambda n: play_session(server.url, n), range(SESSIONS)))
    assert faults == [[]] * SESSIONS


def leave_in_the_middle_of_a_step(url: str) -> None:
    with session(url) as ask:
        reset(ask, seed=1)
        slow = {"type": "step", "data": {"response": "\\boxed{(x+y+z+w)^{500}}"}}
        for _ in range(5):
            ask.websocket.send(json.dumps(slow))


async def begin(open_session: OpenSession) -> EconomicsObservation:
    async with open_session() as served:
        return await served.reset(1, ResetArguments())


def test_session_limit_idle_timeout_and_clients_that_leave(tmp_path: Path) -> None:
    log = (tmp_path / "log").open("w+")
    small = Server(log=log, ECONOMICS_MAX_SESSIONS="2", ECONOMICS_IDLE_TIMEOUT_S="6")
    try:
        with session(small.url) as one, session(small.url) as two:
            assert reset(one, seed=1)["type"] == reset(two, seed=1)["type"] == "observation"
            with session(small.url) as three:
                refused = json.loads(three.websocket.recv(timeout=60))
                assert code(refused) == "CAPACITY_REACHED"
                with pytest.raises(ConnectionClosed):
                    three.websocket.recv(timeout=60)
            with pytest.raises(EpisodeLost, match="raise the server's max_sessions"):
                asyncio.run(begin(served_sessions(small.url)))
            assert step(one, "x")["type"] == "observation"
            ended = json.loads(one.websocket.recv(timeout=60))
            assert code(ended) == "SESSION_ERROR"
            assert "nothing was sent for 6 s" in ended["data"]["message"]
            with pytest.raises(ConnectionClosed):
                one.websocket.recv(timeout=60)
        for _ in range(2):
            wait_for_a_free_session(small.url)
            leave_in_the_middle_of_a_step(small.url)
        wait_for_a_free_session(small.url)
    finally:
        small.stop()
    log.seek(0)
    assert "ASGI" not in log.read()


def wait_for_a_free_session(url: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with suppress(ConnectionClosed), session(url) as ask:
            if reset(ask, seed=1)["type"] == "observation":
                return
        time.sleep(0.2)
    raise AssertionError("sessions that ended still count as open")


def test_soft_mode_from_variables() -> None:
    soft = Server(ECONOMICS_MODE="soft", ECONOMICS_PROBLEMS="2", ENABLE_WEB_INTERFACE="true")
    try:
        with session(soft.url) as ask:
            first = reset(ask, seed=1, total_budget=3)["data"]["observation"]
            assert (first["budget_mode"], first["num_questions"]) == ("soft", 2)
            over = step(ask, "word " * 10)["data"]
            assert over["observation"]["remaining_budget"] == -10.0
            assert not over["done"]
        assert requests.get(f"{soft.url}/web", timeout=30).status_code == 200
    finally:
        soft.stop()
