"""The process that starts agents: one fork per episode, which it can kill with all it has started.

Run as `python -m rlsys.environments.agent.host [MODULE:FUNCTION]` by the module `agents` beside it.
The module of the agent is imported once, before the first fork, so an episode costs milliseconds.
Only the standard library is imported here: each fork has a copy.

    in    {"id": 3, "command": [...] or null, "task": {...}, "endpoint": {...}}    start an agent
          {"kill": 3}                                                             end it
    out   {"ready": true}                                                          first of all
          {"id": 3, "pid": 4711}                                                   it has started
          {"id": 3, "output": "...", "failure": null or "..."}                     it has ended

An agent gets a session of its own (setsid). At its end all processes of this session are killed,
and so are processes that left it: this process adopts them (PR_SET_CHILD_SUBREAPER) and knows them
by the API key in their environment. If standard input ends, everything is killed.

The program that was started is only the parent of this process. Ray kills the children of an actor
together with it, and a host that is killed itself could not end what its agents have started.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import inspect
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from rlsys.environments.agent.interface import Endpoint, Task

OUTPUT_BYTES: Final = 2**16
"""Last bytes that are kept of the output of an agent, and of its errors."""
KILL_ATTEMPTS, KILL_PAUSE_S = 200, 0.01
KEY_VARIABLE: Final = "OPENAI_API_KEY"

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


def load_agent(path: str) -> Any:
    """Return the function that `module:function` names. Raises ImportError or AttributeError."""
    module, _, name = path.partition(":")
    # Behind all other folders, so that no file of the user replaces a library.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return getattr(importlib.import_module(module), name)


class _Job:
    """A running agent."""

    def __init__(self, number: int, key: str, pid: int, output: int, errors: int) -> None:
        self.number, self.key, self.pid = number, key, pid
        self.pipes = {output: bytearray(), errors: bytearray()}
        self.output, self.errors = output, errors

    def read(self, pipe: int) -> bool:
        """Keep what a pipe holds now; False at its end."""
        # One read, which empties a pipe. Until it stays empty would be for ever with an agent that
        # writes without end.
        try:
            data = os.read(pipe, 2**20)
        except BlockingIOError:
            return True
        kept = self.pipes[pipe]
        kept += data
        del kept[:-OUTPUT_BYTES]
        return bool(data)

    def text(self, pipe: int) -> str:
        """Return the last text of a pipe."""
        return self.pipes[pipe].decode(errors="replace")


class Host:
    """Starts, watches and ends agents until standard input ends."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._jobs: dict[int, _Job] = {}
        self._selector = selectors.DefaultSelector()
        self._input = bytearray()
        self._stopping = False

    def serve(self) -> None:
        """Serve until the parent is gone."""
        wakeup, written = os.pipe()
        for pipe in (0, wakeup, written):
            os.set_blocking(pipe, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        # It only wakes the loop: an exception could come while agents are being killed.
        signal.signal(signal.SIGTERM, self._stop)
        self._selector.register(0, selectors.EVENT_READ, None)
        self._selector.register(wakeup, selectors.EVENT_READ, None)
        try:
            while not self._stopping:
                ready = {key.fd: key.data for key, _ in self._selector.select()}
                if 0 in ready and not self._read_input():
                    return
                for pipe, job in ready.items():
                    if job is not None and not job.read(pipe):
                        self._selector.unregister(pipe)
                # Last, because it closes the pipes of the agents that have ended.
                if wakeup in ready:
                    os.read(wakeup, 4096)
                    self._reap()
        finally:
            self._kill(list(self._jobs.values()))
            # Daemons that an agent forked without its key, if there are any.
            _kill_all(lambda process: process.parent == os.getpid())

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def _read_input(self) -> bool:
        """Do what complete lines ask for; False at the end of the input."""
        data = os.read(0, 2**20)
        self._input += data
        *lines, rest = bytes(self._input).split(b"\n")
        self._input = bytearray(rest)
        for line in lines:
            message = json.loads(line)
            if "kill" in message:
                self._kill([j for j in self._jobs.values() if j.number == message["kill"]])
            else:
                self._start(message)
        return bool(data)

    def _start(self, message: dict[str, Any]) -> None:
        output, output_end = os.pipe()
        errors, errors_end = os.pipe()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _run_agent(self._agent, message, output_end, errors_end, parent)
        os.close(output_end)
        os.close(errors_end)
        job = _Job(message["id"], message["endpoint"]["api_key"], pid, output, errors)
        self._jobs[pid] = job
        print(json.dumps({"id": job.number, "pid": pid}), flush=True)
        for pipe in job.pipes:
            os.set_blocking(pipe, False)
            self._selector.register(pipe, selectors.EVENT_READ, job)

    def _reap(self) -> None:
        """Take the exit status of every process that has ended; adopted ones have no job."""
        ended: list[tuple[_Job, int]] = []
        with suppress(ChildProcessError):
            while (status := os.waitpid(-1, os.WNOHANG))[0]:
                if (job := self._jobs.pop(status[0], None)) is not None:
                    ended.append((job, os.waitstatus_to_exitcode(status[1])))
        self._kill([job for job, _ in ended])
        for job, code in ended:
            self._end(job, code)

    def _end(self, job: _Job, code: int) -> None:
        """Send the result of an agent that has ended."""
        for pipe in job.pipes:
            if pipe in self._selector.get_map():
                job.read(pipe)
                self._selector.unregister(pipe)
            os.close(pipe)
        lines = [line.strip() for line in job.text(job.errors).splitlines() if line.strip()]
        failure = None
        if code != 0:
            ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            failure = f"the agent {ended}" + (f" ({lines[-1][:300]})" if lines else "")
        answer = {"id": job.number, "output": job.text(job.output), "failure": failure}
        print(json.dumps(answer), flush=True)

    def _kill(self, jobs: Collection[_Job]) -> None:
        """Kill agents and every process that they have started."""
        for job in jobs:
            if job.pid in self._jobs:  # otherwise its id may belong to another process by now
                os.kill(job.pid, signal.SIGKILL)
        if jobs:
            _kill_all(lambda process: self._is_of(process, jobs))

    def _is_of(self, process: Process, jobs: Collection[_Job]) -> bool:
        """True for a process in the session of an agent, or adopted with the key of one."""
        if process.pid in self._jobs or any(process.pid == job.pid for job in jobs):
            return False
        if any(process.session == job.pid for job in jobs):
            return True
        return process.parent == os.getpid() and _has_key(process.pid, [job.key for job in jobs])


class Process(NamedTuple):
    """A process that has not ended."""

    pid: int
    parent: int
    session: int


def kill_orphans(leaders: Collection[int], keys: Collection[str]) -> None:
    """Kill agents and what they started, after the death of their host.

    `leaders` are the process ids of the agents, `keys` their API keys.
    """
    _kill_all(lambda p: p.pid in leaders or p.session in leaders or _has_key(p.pid, keys))


def _kill_all(chosen: Callable[[Process], bool]) -> None:
    """Kill all chosen processes."""
    # They may start more before the signal arrives, so look again until there are none.
    for _ in range(KILL_ATTEMPTS):
        found = [process.pid for process in _processes() if chosen(process)]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(KILL_PAUSE_S)


def _processes() -> Iterator[Process]:
    """Yield all processes of this machine, zombies left out."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    yield Process(int(entry), int(fields[1]), int(fields[3]))


def _has_key(pid: int, keys: Collection[str]) -> bool:
    """True if the environment of a process holds the API key of one of the episodes."""
    with suppress(OSError):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return any(f"{KEY_VARIABLE}={key}".encode() in variables for key in keys)
    return False


def _run_agent(
    agent: Any, message: dict[str, Any], output: int, errors: int, parent: int
) -> NoReturn:
    """In the fork: run the agent and end; never return."""
    code = 1
    try:
        os.setsid()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # if this host is killed
        if os.getppid() != parent:  # it was killed before that
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        task, endpoint = Task(**message["task"]), Endpoint(**message["endpoint"])
        os.environ |= {
            "OPENAI_BASE_URL": endpoint.base_url,
            KEY_VARIABLE: endpoint.api_key,
            "OPENAI_MODEL": endpoint.model,
        }
        for name in ("no_proxy", "NO_PROXY"):  # a proxy cannot reach the loopback address
            os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
        os.dup2(errors, 2)
        if message["command"]:
            os.dup2(_file_with(json.dumps(message["task"])), 0)
            os.dup2(output, 1)
            os.execvp(message["command"][0], message["command"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # what the agent prints is not its result
        result = agent(task, endpoint)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        kind = "answer" if isinstance(result, str) else "reward"
        value = result if isinstance(result, str) else float(result)
        with os.fdopen(output, "w") as pipe:
            pipe.write(json.dumps({kind: value}))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


async def _awaited(result: Any) -> Any:
    return await result


def _file_with(text: str) -> int:
    """Return a descriptor from which `text` can be read; a pipe would hold only its beginning."""
    file = os.memfd_create("task")
    os.write(file, text.encode())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def main() -> None:
    """Import the agent, tell that it is there, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the actor, and with it the input
    if (host := os.fork()) != 0:
        os._exit(abs(os.waitstatus_to_exitcode(os.waitpid(host, 0)[1])))
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    agent = load_agent(sys.argv[1]) if len(sys.argv) > 1 else None
    print(json.dumps({"ready": True}), flush=True)
    Host(agent).serve()


if __name__ == "__main__":
    main()
