"""What a client makes of wrong URLs and of answers, well-formed or not, that a script gives."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from economics_server import free_port
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from rlsys.environments.economics.dialect import EconomicsDialect
from rlsys.environments.openenv.dialects import TextDialect
from rlsys.environments.openenv.remote import RemoteEnvironment
from rlsys.environments.turns import Reply, Turn
from rlsys.errors import ConfigError, EpisodeLost


def economics(url: str) -> RemoteEnvironment:
    return RemoteEnvironment(url, EconomicsDialect())


def test_a_url_that_is_none() -> None:
    cases: list[str] = ["localhost:8000", "ws://localhost:8000", "http://", "economics"]
    for url in cases:
        with pytest.raises(ConfigError, match="is not an http or https URL"):
            economics(url)


def test_a_check_where_nobody_answers() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=rf"no server answers at .* '{url}' .*refused"):
        asyncio.run(economics(url).check())


def test_a_check_of_some_other_web_server(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            asyncio.run(wait_for_port(port))
            with pytest.raises(ConfigError, match=r"is not an OpenEnv server \(HTTP status 404\)"):
                asyncio.run(economics(url).check())
        finally:
            process.terminate()


async def wait_for_port(port: int) -> None:
    for _ in range(100):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


PAGES = {
    "/health": {"status": "healthy"},
    "/schema": {
        "observation": {"properties": {"text": {}, "left": {}}},
        "action": {"properties": {"move": {}}},
    },
}


@asynccontextmanager
async def scripted(
    *answers: str, state: str = '{"type": "state", "data": {}}'
) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A server that grants a session and then gives these answers; what is sent is recorded.

    It is healthy, and has the fields of TEXT.
    """
    received: list[dict[str, Any]] = []

    async def handle(websocket: ServerConnection) -> None:
        waiting = iter(answers)
        async for message in websocket:
            received.append(json.loads(message))
            if received[-1]["type"] == "state":
                await websocket.send(state)
            else:
                await websocket.send(next(waiting))

    def page(connection: ServerConnection, request: Request) -> Response | None:
        if request.path not in PAGES:
            return None
        return connection.respond(200, json.dumps(PAGES[request.path]))

    async with serve(handle, "127.0.0.1", 0, process_request=page) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", received


def observed(**data: bool | float | None) -> str:
    observation = {"text": "go", "left": 7, "board": [1]}
    return json.dumps({"type": "observation", "data": {"observation": observation, **data}})


TEXT = TextDialect(
    observation_field="text",
    action_field="move",
    remaining_field="left",
    reset_options={"level": 2},
)


def test_the_frames_of_a_text_environment() -> None:
    async def run() -> tuple[Turn, Turn, list[dict[str, Any]]]:
        script = scripted(observed(reward=None, done=False), observed(reward=True, done=True))
        async with script as (url, received):
            async with RemoteEnvironment(url, TEXT).session() as session:
                first = await session.reset(seed=9)
                last = await session.reply(Reply(text="hm, left", visible="left", tokens=3))
            return first, last, received

    first, last, received = asyncio.run(run())
    assert (first.text, first.reward, first.done, first.remaining) == ("go", 0.0, False, 7)
    assert (last.reward, last.done) == (1.0, True)
    assert received[1:] == [
        {"type": "reset", "data": {"level": 2, "seed": 9}},
        {"type": "step", "data": {"move": "left"}},
    ]


def test_an_answer_that_means_nothing_loses_the_episode() -> None:
    async def run(frame: str, reason: str) -> None:
        async with (
            scripted(frame) as (url, _),
            RemoteEnvironment(url, TEXT).session() as session,
        ):
            with pytest.raises(EpisodeLost, match=reason):
                await session.reset(seed=9)
            with pytest.raises(EpisodeLost, match="failed before"):
                await session.reset(seed=9)

    cases: list[tuple[str, str]] = [
        ("not json", "not a frame of OpenEnv"),
        ("[]", "not a frame of OpenEnv"),
        ('{"type": "observation", "data": {}}', "observation: Field required"),
        ('{"type": "error", "data": {"code": "C", "message": "No."}}', "C: No."),
        (observed(reward=float("nan")), "reward: Input should be a finite number"),
        ('{"type": "observation", "data": {"observation": {"text": ""}}}', "no field 'left'"),
    ]
    for frame, reason in cases:
        asyncio.run(run(frame, reason))


def refused(code: str) -> str:
    return json.dumps({"type": "error", "data": {"code": code, "message": "No."}})


def check(*answers: str, **settings: str) -> tuple[str, list[dict[str, Any]]]:
    """Check a server that gives these answers; a check that waits for it is too late."""

    async def run() -> tuple[str, list[dict[str, Any]]]:
        async with scripted(*answers, **settings) as (url, received):
            await asyncio.wait_for(RemoteEnvironment(url, TEXT).check(), 20)
            return url, received

    return asyncio.run(run())


def test_a_check_begins_an_episode() -> None:
    _, received = check(observed())
    assert [message["type"] for message in received] == ["state", "reset"]


def test_a_full_server_is_no_fault_and_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    url, received = check(state=refused("CAPACITY_REACHED"))
    assert len(received) == 1
    assert caplog.messages == [
        f"the server at environment.url '{url}' is full (No.); episodes will wait for sessions"
    ]


def test_a_session_that_is_refused_fails_a_check_at_once() -> None:
    with pytest.raises(
        ConfigError, match=r"no session could be opened at .* \(No\.\); see the ser"
    ):
        check(state=refused("FACTORY_ERROR"))


def test_a_reset_that_is_refused_fails_a_check() -> None:
    with pytest.raises(
        ConfigError, match=r"failed at a reset \(C: No\.\); correct what .*\(level\)"
    ):
        check(refused("C"))
