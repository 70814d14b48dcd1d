"""Whole runs with faults: bring them about, see when they are noticed, compare what is left.

Where a fault ends the command, it is given again, as a scheduler does.
"""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import psutil
from commands import Command, started_processes, wait_until
from random_faults import STEPS, Fault, Kind, Moment, Target
from safetensors.numpy import load_file
from scipy.stats import ks_2samp

from rlsys.launch.processes import weights_folder
from rlsys.reporting.ledger_file import read_ledger
from rlsys.reporting.metrics_file import METRICS, read_rows
from rlsys.training.ledger import GroupFate, Summary, summarise

ENDS: Final = (0, 1, 130, -signal.SIGKILL)
"""Exit codes that a command may have: done, an error in one sentence, stopped, killed."""
RECOVERY_S: Final = 300.0
"""How long a run may take to train again after a fault; the watchdog is part of it."""
COMMANDS: Final = 4
"""How often the command is given per fault, at most."""


@dataclass(kw_only=True)
class Observed:
    """What was seen of a fault, in seconds after it; None if it was not seen."""

    fault: Fault
    detected_s: float | None = None
    """A message, the end of the command, or a new process in the place of the old one."""
    serving_s: float | None = None
    """A training step that began after the fault, with all engines that serve."""
    how: str = ""
    """First sign of the detection."""


@dataclass
class Chaos:
    """One run and its faults."""

    run_dir: Path
    config_file: Path
    settings: tuple[str, ...] = ()
    commands: list[Command] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)

    @property
    def command(self) -> Command:
        """The command that was given last."""
        return self.commands[-1]

    def to_the_end(self, faults: Sequence[Fault]) -> None:
        """Train all steps while the faults happen; raises AssertionError if the run is lost."""
        try:
            self._start()
            for fault, after in zip(faults, [*faults[1:], None], strict=True):
                if not self._reach(fault):
                    break
                self._observe(fault, after)
            limit = len(faults) * COMMANDS + 1
            while (code := self.command.wait()) != 0:
                self._ended(code)
                assert len(self.commands) <= limit, f"no end in sight\n{self.command.output}"
                self._start()
            self._ended(0)
        finally:
            for command in self.commands:
                command.kill_all()

    def _start(self) -> None:
        self.commands.append(Command(self.run_dir, "train", self.config_file, *self.settings))

    def _ended(self, code: int) -> None:
        self.exits.append(code)
        output = self.command.output
        assert code in ENDS, f"exit code {code}\n{output}"
        assert "Traceback" not in output, output
        assert self.command.all_gone(30), (self.command.left(), output)
        if code in (0, 130):
            assert not weights_folder(self.run_dir).exists(), output

    def _alive(self) -> bool:
        """Start the command again if it ended by a fault; False if it has done all steps."""
        code = self.command.ended
        if code is None:
            return True
        if code == 0:
            return False
        self._ended(code)
        self._start()
        return True

    def _reach(self, fault: Fault) -> bool:
        """Return at the moment of the fault; False if the run ended before."""
        if fault.moment is not Moment.RECOVERY:
            end = time.monotonic() + RECOVERY_S
            while max(_steps(self.command.output), default=0) < fault.step:
                assert time.monotonic() < end, f"no step {fault.step}\n{self.command.output}"
                if not self._alive():
                    return False
                time.sleep(0.05)
            self._reach_within_step(fault.moment)
        time.sleep(fault.delay_s)
        return self._alive()

    def _reach_within_step(self, moment: Moment) -> None:
        match moment:
            case Moment.SYNC:
                bucket = weights_folder(self.run_dir) / "bucket-0.safetensors"
                before = _changed_at(bucket)
                wait_until(lambda: _changed_at(bucket) != before, 3, pause=0.002)
            case Moment.SAVE:
                folder = self.run_dir / "checkpoints"
                wait_until(lambda: any(folder.glob(".step-*.partial")), 5, pause=0.005)

    def _observe(self, fault: Fault, after: Fault | None) -> None:
        """Bring the fault about, and wait for its recovery unless the next fault is part of it."""
        struck = self._locate(fault)
        command, printed, began = self.command, len(self.command.output), time.monotonic()
        self._strike(struck, fault)
        seen = Observed(fault=fault)
        self.observed.append(seen)
        if after is not None and after.moment is Moment.RECOVERY:
            return
        limit = RECOVERY_S + fault.pause_s
        while seen.serving_s is None:
            elapsed = round(time.monotonic() - began, 2)
            new = command.output[printed:]
            if seen.detected_s is None and (how := self._sign(command, new, struck, fault.target)):
                seen.detected_s, seen.how = elapsed, how
            if command is not self.command:
                # The first step of a command began after the fault.
                if _serves(self.command.output, 1):
                    seen.serving_s = elapsed
            elif (seen.detected_s is not None or not _surely_seen(fault)) and _serves(new, 2):
                seen.serving_s = elapsed
            assert elapsed < limit, f"no step within {limit:g} s of {fault}\n{self.command.output}"
            if not self._alive():
                return
            time.sleep(0.1)

    def _sign(self, command: Command, new: str, struck: psutil.Process, target: Target) -> str:
        """Return the first sign that the fault was noticed; empty if there is none yet."""
        for line in new.splitlines():
            if "started again" in line or "is damaged" in line:
                return line
        if command.ended is not None:
            return f"exit code {command.ended}"
        if command is not self.command or target is Target.DRIVER or _lives(struck):
            return ""
        return "a new process" if find(command, target) else ""

    def _locate(self, fault: Fault) -> psutil.Process:
        """Return the process of the fault; one that is just being started is waited for."""
        end = time.monotonic() + RECOVERY_S
        while not (found := find(self.command, fault.target)):
            assert time.monotonic() < end and self._alive(), f"nothing to strike for {fault}"
            time.sleep(0.1)
        return found[int(fault.choice * len(found))]

    def _strike(self, process: psutil.Process, fault: Fault) -> None:
        if fault.kind is Kind.CORRUPT:
            damage(self.run_dir / "checkpoints", fault.choice)
        with suppress(psutil.NoSuchProcess):
            match fault.kind:
                case Kind.KILL | Kind.CORRUPT:
                    process.kill()
                case Kind.TERMINATE:
                    process.terminate()
                case Kind.STOP:
                    process.suspend()
                case Kind.PAUSE:
                    process.suspend()
                    time.sleep(fault.pause_s)
                    process.resume()


def find(command: Command, target: Target) -> list[psutil.Process]:
    """Return the living processes of a command that play this part, the oldest first."""
    match target:
        case Target.DRIVER:
            found = [command.driver]
        case Target.ENGINE:
            found = command.find("GenerationActor")
        case Target.VLLM:
            found = _children(command.find("GenerationActor"))
        case Target.ENVIRONMENT:
            found = command.find("EnvironmentActor")
        case Target.GRADER:
            found = command.find("GradingActor")
        case Target.COMPARISON:
            found = _children(command.find("GradingActor"))
        case Target.LEARNER:
            found = command.find("LearnerWorker")
    return sorted(found, key=lambda process: process.pid)


def damage(checkpoints: Path, choice: float) -> None:
    """Damage one file of the newest checkpoint; `choice` in [0, 1) draws the file and the way."""
    newest = max(checkpoints.glob("step-[0-9]*"), key=lambda path: int(path.name.split("-")[1]))
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    generator = random.Random(choice)
    file = generator.choice(files)
    data = bytearray(file.read_bytes())
    match generator.choice(("empty", "cut", "change", "delete")):
        case "empty":
            file.write_bytes(b"")
        case "cut":
            file.write_bytes(data[: len(data) // 2])
        case "change" if data:
            data[generator.randrange(len(data))] ^= 0xFF
            file.write_bytes(data)
        case _:
            file.unlink()


def _children(actors: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that actors started for their work."""
    found = []
    for actor in actors:
        with suppress(psutil.Error):
            found += started_processes(actor)
    return found


def _surely_seen(fault: Fault) -> bool:
    """False if the run may go on without noticing the fault."""
    # Verdicts are cached: the grading process and its actor are missed when a new answer comes.
    unseen = fault.target is Target.COMPARISON
    unseen |= (fault.kind, fault.target) == (Kind.STOP, Target.GRADER)
    return fault.kind is not Kind.PAUSE and not unseen


def _steps(output: str) -> list[int]:
    return [int(number) for number in re.findall(rf"^step (\d+)/{STEPS} ", output, re.MULTILINE)]


def _serves(output: str, steps: int) -> bool:
    """Whether this many steps were trained, and all engines that were started again serve."""
    down = len(re.findall(r"^engine \d+ .*it is started again", output, re.MULTILINE))
    return len(_steps(output)) >= steps and output.count(" serves again") >= down


def _changed_at(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a run with faults left, compared with a run without faults."""

    ledger: Summary
    steps: list[int]
    """Steps of metrics.jsonl, in its order."""
    same_problems: bool
    """Whether every group is of the same problem in both runs."""
    same_groups: bool
    """Whether every group has the same tokens, lengths and scores in both runs."""
    same_export: bool
    """Whether all exported weights are equal, bit for bit."""
    length_p: float
    """Two-sample Kolmogorov-Smirnov p-value of the mean lengths of the trained groups."""


def compare(run_dir: Path, undisturbed: Path) -> Verdict:
    """Compare two finished runs of the same kind."""
    ours, theirs = read_ledger(run_dir), read_ledger(undisturbed)
    exports = [load_file(run / "export" / "model.safetensors") for run in (run_dir, undisturbed)]
    return Verdict(
        ledger=summarise(ours),
        steps=[row["step"] for row in read_rows(run_dir / METRICS) if "loss" in row],
        same_problems=[fate.problem for fate in ours] == [fate.problem for fate in theirs],
        same_groups=[_of_group(fate) for fate in ours] == [_of_group(fate) for fate in theirs],
        same_export=exports[0].keys() == exports[1].keys()
        and all(np.array_equal(value, exports[1][name]) for name, value in exports[0].items()),
        length_p=float(ks_2samp(_lengths(ours), _lengths(theirs)).pvalue),
    )


def _of_group(fate: GroupFate) -> tuple[object, ...]:
    return fate.group, fate.sampled, fate.tokens, fate.length, fate.score


def _lengths(fates: Sequence[GroupFate]) -> list[float]:
    return [fate.length for fate in fates if fate.fate == "trained" and fate.length is not None]
