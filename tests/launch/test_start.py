"""What a run tells while it starts, and what its processes do not import."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rlsys.launch import start as module
from rlsys.launch.start import Start
from rlsys.training.watchdog import Progress


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def test_one_line_tells_how_long_the_parts_took(clock: Clock) -> None:
    told: list[str] = []

    async def main() -> None:
        start = Start(Progress(), told.append, began=91.0)
        async with start.telling():
            for name, seconds in (("inputs", 3.0), ("Ray", 6.0), ("placement", 0.1)):
                with start.part(name, waits=False):
                    clock.now += seconds
            with start.part("learner"), start.part("engines") as steps:
                clock.now += 88.0
                steps.update({"import": 20.4, "load": 39.0, "compile": 28.6, "none": 0.0})
            with pytest.raises(OSError), start.part("reflection engines"):
                raise OSError
            with start.part("first weight sync") as steps:
                clock.now += 1.64
                steps.update({"connect": 0.84, "load": 0.3})
            start.up()
            clock.now += 12.0  # the evaluation
            start.ready()
            clock.now += 50.0
            with start.part("first weight sync"):  # of a learner that was started again
                clock.now += 7.0
            start.up()
            start.ready()

    asyncio.run(main())
    assert told == [
        "started in 108 s: command 9.0 s, inputs 3.0 s, Ray 6.0 s, learner 88 s, engines 88 s "
        "(import 20 s, load 39 s, compile 29 s), first weight sync 1.6 s (connect 0.8 s)",
        "first evaluation 12 s; training begins 120 s after the command",
    ]


def test_a_start_without_an_evaluation_is_told_once(clock: Clock) -> None:
    told: list[str] = []

    async def main() -> None:
        start = Start(Progress(), told.append)
        async with start.telling():
            with start.part("checkpoint"):
                clock.now += 2.0
            start.up()
            start.ready()

    asyncio.run(main())
    assert told == ["started in 2 s: checkpoint 2.0 s"]


def test_a_start_tells_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TELL_S", 0.01)
    told: list[str] = []

    async def until_told(lines: int) -> None:
        async with asyncio.timeout(60):
            while len(told) < lines:
                await asyncio.sleep(0.01)

    async def main() -> None:
        start = Start(Progress(), told.append)
        async with start.telling():
            with start.part("placement", waits=False):  # it tells by itself what is missing
                await asyncio.sleep(0.1)
            assert told == []
            with start.part("engines"):
                with start.part("learner"):
                    await until_told(1)
                assert told[0].startswith("starting for ")
                assert told[0].endswith(" s; waiting for the engines, the learner")
                told.clear()
                await until_told(2)
                assert told[-1].endswith(" s; waiting for the engines")
            start.up()
            with start.progress.waiting_for("the evaluation after step 0"):
                told.clear()
                await until_told(1)
                assert told[0].endswith(" s; waiting for the evaluation after step 0")
            start.ready()
            told.clear()
            with start.progress.waiting_for("the groups of training step 1"):
                await asyncio.sleep(0.1)
        assert told == []

    asyncio.run(main())


ENVIRONMENT = """\
import actors.environment
from rlsys.tokenization.tokenizer import load_tokenizer
load_tokenizer("tiny")"""


@pytest.mark.parametrize(
    ("process", "code", "absent"),
    [
        ("driver", "import rlsys.launch.training", "vllm deepspeed transformers datasets sympy"),
        ("environment", ENVIRONMENT, "vllm deepspeed datasets pandas math_verify learner"),
        ("grading", "import actors.grading", "vllm deepspeed torch transformers sympy learner"),
        ("engine, before it loads", "import actors.generation", "vllm torch transformers learner"),
        ("learner", "import learner.worker", "vllm datasets pandas sympy actors"),
    ],
)
def test_a_process_imports_no_library_of_another_one(process: str, code: str, absent: str) -> None:
    shown = f"import sys\n{code}\nprint(*set({absent.split()!r}) & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "", process
