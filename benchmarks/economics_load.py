"""Measure the speed of the economics server, and check that its sessions stay separate.

    python benchmarks/economics_load.py                          64 sessions x 1,000 episodes
    python benchmarks/economics_load.py --sessions 8 --episodes 50

The sockets use the loopback interface. Every session plays episodes with different seeds, budgets
and answers, and checks the state of the server after each episode. The script prints one JSON
object: steps per second, step latency at the client in milliseconds, and resident memory of the
server after a tenth of the episodes and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

QUESTIONS = 10


def main() -> None:
    """Start a server, measure it under load, stop it, and print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=1000)
    arguments = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = [f"port={port}", f"max_sessions={arguments.sessions}"]
    command = [sys.executable, "-m", "rlsys", "serve-env", *settings]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until_healthy(port)
        numbers = asyncio.run(load(port, server.pid, arguments.sessions, arguments.episodes))
    finally:
        server.terminate()
        server.wait()
    print(json.dumps(numbers, indent=2))


def wait_until_healthy(port: int) -> None:
    """Return once the server answers."""
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise SystemExit("the server did not start")


async def load(port: int, pid: int, sessions: int, episodes: int) -> dict[str, Any]:
    """Play all sessions at once and return the numbers."""
    latencies_s: list[float] = []
    memory_mib: list[float] = []
    faults: list[str] = []
    start = time.perf_counter()
    await asyncio.gather(
        *(play(port, pid, n, episodes, latencies_s, memory_mib, faults) for n in range(sessions))
    )
    wall_s = time.perf_counter() - start
    p50, p99 = np.percentile(latencies_s, [50, 99]) * 1000
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "sessions": sessions,
        "episodes_per_session": episodes,
        "steps": len(latencies_s),
        "wall_s": round(wall_s, 1),
        "steps_per_s": round(len(latencies_s) / wall_s),
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "max_ms": round(max(latencies_s) * 1000, 2),
        "server_mib": [round(memory_mib[0], 1), round(memory_mib[-1], 1)],
        "faults": faults,
    }


async def play(
    port: int,
    pid: int,
    number: int,
    episodes: int,
    latencies_s: list[float],
    memory_mib: list[float],
    faults: list[str],
) -> None:
    """Play the episodes of one session, and check the state of the server after each."""
    async with connect(f"ws://127.0.0.1:{port}/ws", compression=None) as socket:
        for episode in range(episodes):
            sent = {"seed": number * episodes + episode, "episode_id": f"{number}-{episode}"}
            budget = {"total_budget": 400 + number}
            answer = await ask(socket, {"type": "reset", "data": sent | budget})
            right = spent = 0
            for question in range(QUESTIONS):
                gold = worked_out(answer["data"]["observation"]["question"])
                correct = (number + episode + question) % 3 > 0
                words = 1 + (number + question) % 5
                text = "so " * (words - 1) + f"\\boxed{{{gold + (not correct)}}}"
                began = time.perf_counter()
                answer = await ask(socket, {"type": "step", "data": {"response": text}})
                latencies_s.append(time.perf_counter() - began)
                right += correct
                spent += int(1.33 * words)
            state = (await ask(socket, {"type": "state"}))["data"]
            expected = sent | budget | {"total_correct": right, "spent_budget": spent}
            faults += [f"{number}-{episode}: {k}" for k in expected if state[k] != expected[k]]
            if number == 0 and episode in (episodes // 10, episodes - 1):
                memory_mib.append(resident_mib(pid))


async def ask(socket: ClientConnection, frame: dict[str, Any]) -> dict[str, Any]:
    """Send a frame and return the answer."""
    await socket.send(json.dumps(frame))
    answer: dict[str, Any] = json.loads(await socket.recv())
    return answer


def worked_out(question: str) -> int:
    """Return the answer to a generated question such as `3+8-2`."""
    return sum(int(term) for term in question.replace("-", "+-").split("+") if term)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
