"""Agents in processes that can be killed: start one, wait for its result, end it with its children.

rlsys.environments.agent.host is the process that starts them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, NamedTuple

from rlsys.environments.agent import host
from rlsys.environments.agent.interface import Endpoint, Task
from rlsys.environments.agent.session import Session
from rlsys.errors import ConfigError

LARGEST_REWARD: Final = 1e6
IMPORT_LIMIT_S: Final = 300.0
"""How long the import of an agent may take when it is checked."""
_LINE_BYTES: Final = 16 * host.OUTPUT_BYTES
"""Longest message of the host: JSON may write one byte of an output as several."""


class Result(NamedTuple):
    """How an agent ended: with a score, with an answer to grade, or with a failure."""

    reward: float | None = None
    answer: str | None = None
    failure: str | None = None


class Agents:
    """Runs agents, many at once. Use it from one event loop only."""

    def __init__(self, agent: str | None, command: Sequence[str], limit_s: float) -> None:
        """Nothing is started yet.

        Args:
            agent: `module:function`, or None if `command` is run in its place.
            command: program and arguments of an agent.
            limit_s: most seconds that an agent itself may take; see Session.agent_s.
        """
        self._agent = agent
        self._command = list(command)
        self._limit_s = limit_s
        self._numbers = count()
        self._ends: dict[int, asyncio.Future[Result]] = {}
        self._keys: dict[int, str] = {}
        self._pids: dict[int, int] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def run(self, task: Task, endpoint: Endpoint, session: Session) -> Result:
        """Run one agent to its end.

        Its processes are gone when this returns. If this raises or is cancelled, they are killed.
        Raises the error of the policy if the policy fails.
        """
        process = self._process
        assert process is not None, "start() comes before run()"
        number = next(self._numbers)
        end: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._ends[number], self._keys[number] = end, endpoint.api_key
        command = None if self._agent else self._command
        self._send(
            process,
            id=number,
            command=command,
            task=task._asdict(),
            endpoint=endpoint._asdict(),
        )
        failed = asyncio.ensure_future(session.failed.wait())
        try:
            while not (end.done() or failed.done()):
                left = self._limit_s - session.agent_s()
                if left <= 0:
                    self._send(process, kill=number)
                    await end
                    return Result(failure=f"the agent took more than {self._limit_s:g} s")
                # The clock of the agent stands still while the policy writes, so look again.
                await asyncio.wait((end, failed), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if session.error is not None:
                raise session.error
            return end.result()
        finally:
            failed.cancel()
            if not end.done():
                self._send(process, kill=number)
            for known in (self._ends, self._keys, self._pids):
                known.pop(number, None)

    async def close(self) -> None:
        """End the host and with it all agents."""
        if self._process is not None:
            self._end_input(self._process)
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def start(self) -> None:
        """Start the host and wait for its import of the agent; one that died is started again.

        Raises ConfigError if the agent cannot be imported on this node.
        """
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return
            if self._reader is not None:
                await self._reader  # it ends the agents of the host that died
            process = await asyncio.create_subprocess_exec(
                *_command(self._agent),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_variables(),
                limit=_LINE_BYTES,
                # Ray kills the process group of an actor that dies, before the host could end what
                # its agents have started.
                start_new_session=True,
            )
            assert process.stdout is not None
            if not await process.stdout.readline():
                raise ConfigError(
                    f"environment.agent {self._agent!r} cannot be imported on every node of the "
                    "run; install it there, and set RLSYS_ACTOR_LOGS=1 to see why"
                )
            self._process = process
            self._reader = asyncio.create_task(self._read(process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            message = json.loads(line)
            end = self._ends.get(message["id"])
            if end is None or end.done():  # it was cancelled
                continue
            if "pid" in message:
                self._pids[message["id"]] = message["pid"]
            else:
                end.set_result(_result(message["output"], message["failure"]))
        await process.wait()
        if self._ends:
            host.kill_orphans(set(self._pids.values()), set(self._keys.values()))
        for end in self._ends.values():
            if not end.done():
                end.set_result(Result(failure="the process that starts the agents ended"))

    @staticmethod
    def _send(process: asyncio.subprocess.Process, **message: object) -> None:
        assert process.stdin is not None
        with suppress(OSError, RuntimeError):  # the host is gone, which `_read` notices
            process.stdin.write(json.dumps(message).encode() + b"\n")

    @staticmethod
    def _end_input(process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        process.stdin.close()


def check_agent(agent: str) -> None:
    """Import an agent in a process of its own. Raises ConfigError if that fails."""
    reason = None
    try:
        done = subprocess.run(
            _command(agent),
            input="",  # a pipe that ends at once, and with it the host
            capture_output=True,
            text=True,
            env=_variables(),
            timeout=IMPORT_LIMIT_S,
        )
        if done.returncode:
            reason = done.stderr.strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired:
        reason = f"the import takes more than {IMPORT_LIMIT_S:g} s"
    if reason is not None:
        raise ConfigError(
            f"environment.agent {agent!r} cannot be imported ({reason}); write it like "
            "my_package.my_module:my_agent, and start rlsys in the folder that holds it"
        )


def _command(agent: str | None) -> list[str]:
    return [sys.executable, "-m", host.__name__, *([agent] if agent else [])]


def _variables() -> dict[str, str]:
    """Return the environment of agents: ours, without what would let them join the Ray cluster."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return ours | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}


def _result(output: str, failure: str | None) -> Result:
    """Read the last line of an agent's output: {"reward": 0.5} or {"answer": "42"}."""
    if failure is not None:
        return Result(failure=failure)
    lines = [line for line in output.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    try:
        found: Any = json.loads(last)
    except (ValueError, RecursionError):
        found = None
    match found:
        # Scores are 32-bit numbers, in which large ones are infinite.
        case {"reward": bool() | int() | float() as reward} if abs(reward) <= LARGEST_REWARD:
            return Result(reward=float(reward))
        case {"answer": str() as answer}:
            return Result(answer=answer)
    return Result(
        failure=f"the agent returned {last[:100]!r}, which is neither an answer nor a reward of at "
        f"most {LARGEST_REWARD:g}"
    )
