"""Hostile texts through the grader and the served economics environment.

Nothing in them is evaluated, every one of them gets an answer, and no process grows. The gate sends
100 texts; `make chaos` sends 10,000 and prints texts per second and memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from economics_server import Server, arithmetic, reset, session, step
from hostile import CANARY, hostile_strings

from actors.grading import GradingActor
from rlsys.config import GradingConfig
from rlsys.types import GradingRequest, Verdict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

COUNTS = [100, pytest.param(10_000, marks=pytest.mark.chaos)]
GROWTH_MIB = 32
"""How much larger a process may become in the second half of the texts."""
SESSIONS = 4
BUDGET = 10**8


def rss_mib(pid: int | None) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 2**20


@pytest.mark.parametrize("count", COUNTS)
def test_grader(tmp_path: Path, count: int) -> None:
    actor = GradingActor(GradingConfig(timeout_s=1.0, actors=1))
    assert actor.grade([right()]) == [Verdict.RIGHT]
    verdicts: list[Verdict] = []
    sizes: list[float] = []
    began = time.monotonic()
    for i, text in enumerate(hostile_strings(count, 1, str(tmp_path))):
        # Half of them arrive boxed as a model would write them, half as they are.
        response = f"so \\boxed{{{text}}}" if i % 2 else text
        verdicts += actor.grade([GradingRequest(response=response, gold="1/7")])
        if i % max(1, count // 10) == 0:
            sizes.append(rss_mib(actor._process.pid))
    seconds = time.monotonic() - began
    print(f"{count} texts, {count / seconds:.0f} per s, MiB {[round(s) for s in sizes]}")
    print(actor.counts())
    assert len(verdicts) == count
    assert Verdict.RIGHT not in verdicts
    assert actor.grade([right()]) == [Verdict.RIGHT]
    assert not (tmp_path / CANARY).exists()
    assert growth(sizes) < GROWTH_MIB, sizes


@pytest.mark.parametrize("count", COUNTS)
def test_served_environment(tmp_path: Path, count: int) -> None:
    texts = list(hostile_strings(count, 2, str(tmp_path)))
    with (tmp_path / "log").open("w") as log:
        server = Server(log=log)
        try:
            sizes = [server.memory_mib()]
            began = time.monotonic()
            with ThreadPoolExecutor(SESSIONS) as threads:
                for part in range(10):
                    shares = [texts[i :: 10 * SESSIONS] for i in range(part, 10 * SESSIONS, 10)]
                    list(threads.map(lambda share: send(server.url, share), shares))
                    sizes.append(server.memory_mib())
            seconds = time.monotonic() - began
            print(f"{count} texts, {count / seconds:.0f} per s, MiB {[round(s) for s in sizes]}")
            with session(server.url) as ask:
                question = reset(ask, seed=3, total_budget=BUDGET)["data"]["observation"]
                honest = step(ask, f"\\boxed{{{arithmetic(question['question'])}}}")
                assert honest["data"]["observation"]["accuracy_so_far"] == 1.0
        finally:
            server.stop()
    assert not (tmp_path / CANARY).exists()
    assert growth(sizes) < GROWTH_MIB, sizes
    assert "Traceback" not in (tmp_path / "log").read_text()


def send(url: str, texts: Sequence[str]) -> None:
    """Send texts as answers, and every tenth one as a frame of its own; each gets an answer."""
    with session(url) as ask:
        reset(ask, seed=0, total_budget=BUDGET)
        for i, text in enumerate(texts):
            frame = text.encode(errors="replace").decode()
            answer = ask(frame) if i % 10 == 9 else step(ask, f"\\boxed{{{text}}}")
            assert answer["type"] in ("observation", "error"), answer
            if answer["type"] == "observation" and answer["data"]["done"]:
                reset(ask, seed=i, total_budget=BUDGET)


def growth(sizes: Sequence[float]) -> float:
    """How much larger a process was in the second half of the texts than in the first one."""
    half = len(sizes) // 2
    return max(sizes[half:]) - max(sizes[:half])


def right() -> GradingRequest:
    return GradingRequest(response="\\boxed{\\frac{2}{14}}", gold="1/7")
