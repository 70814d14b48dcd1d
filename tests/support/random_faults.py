"""Random faults of a whole run, drawn from a seed: what happens to which process, and when.

The run is `rlsys train` on the tiny reasoner, with CONFIG and the settings of a MODE. A fault comes
from outside, by signals and by changes of files; nothing inside rlsys knows of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

STEPS: Final = 24
WATCHDOG_S: Final = 90.0

CONFIG: Final[dict[str, Any]] = {
    "steps": STEPS,
    "data": {
        "train": {"source": "arithmetic", "size": 64},
        "evaluation": {"source": "arithmetic", "size": 2, "held_out": True},
    },
    "environment": {
        "budgets": [8, 64],
        "answers": 2,
        "answer_tokens": 6,
        "closing": "",
        "answer_header": "\n\n**Final Answer**\n\\boxed{",
    },
    "batch": {"problems": 4, "group_size": 4},
    "learner": {"row_tokens": 256, "optimizer": {"learning_rate": 1e-4}, "restarts": 20},
    "generation": {"kv_cache_mib": 32, "heartbeat_s": 10, "restarts": 20},
    # So that every answer is compared in the grading process, which is one of the targets.
    "grading": {"policy": "math-verify"},
    "checkpoint": {"every": 4},
    "watchdog": {"progress_s": WATCHDOG_S},
}
MODES: Final[dict[str, tuple[str, ...]]] = {
    "synchronous": (),
    "staleness 1": ("rollout.max_staleness=1",),
    "two engines": ("generation.engines=2", "sync.bucket_mib=1"),
}
"""Settings of each kind of run. The first and the last are synchronous: tokens do not depend on
when and where they are sampled, so faults must not change the exported weights."""


class Kind(StrEnum):
    """What happens."""

    KILL = "kill -9"
    TERMINATE = "SIGTERM"
    STOP = "SIGSTOP, for ever"
    PAUSE = "SIGSTOP, then SIGCONT"
    CORRUPT = "newest checkpoint damaged, then kill -9"


class Target(StrEnum):
    """The process to which it happens."""

    DRIVER = "driver"
    ENGINE = "engine"
    VLLM = "vLLM's process"
    ENVIRONMENT = "environment actor"
    GRADER = "grading actor"
    COMPARISON = "grading process"
    LEARNER = "learner rank"


class Moment(StrEnum):
    """When, after a step was recorded."""

    STEP = "in a step"
    SYNC = "in a weight sync"
    SAVE = "in a checkpoint"
    RECOVERY = "in the recovery before"
    """Right after the fault before this one, which is still being recovered from."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of a run."""

    kind: Kind
    target: Target
    step: int
    moment: Moment
    delay_s: float = 0.0
    """From the moment to the fault."""
    pause_s: float = 0.0
    """How long a PAUSE lasts."""
    choice: float = 0.0
    """In [0, 1): which of several processes or files."""


def draw(seed: int, count: int) -> list[Fault]:
    """Return `count` faults in the order in which they happen; the same for the same seed."""
    generator = random.Random(seed)
    first, last = 1, STEPS - 4
    steps = sorted(generator.sample(range(first, last), count))
    faults: list[Fault] = []
    for step in steps:
        kind, target = _kind_and_target(generator, faults, step)
        moments = [Moment.STEP] * 4 + [Moment.SYNC] * 2 + [Moment.SAVE]
        if faults and faults[-1].kind in (Kind.KILL, Kind.TERMINATE):
            moments.append(Moment.RECOVERY)
        moment = generator.choice(moments)
        longest = {Moment.RECOVERY: 10.0, Moment.STEP: 0.5}.get(moment, 0.1)
        faults.append(
            Fault(
                kind=kind,
                target=target,
                step=step,
                moment=moment,
                delay_s=round(generator.uniform(0.0, longest), 3),
                pause_s=round(10 ** generator.uniform(-0.7, 1.2), 3) if kind is Kind.PAUSE else 0.0,
                choice=round(generator.random(), 6),
            )
        )
    return faults


def _kind_and_target(
    generator: random.Random, before: Sequence[Fault], step: int
) -> tuple[Kind, Target]:
    kinds = [Kind.KILL] * 5 + [Kind.TERMINATE] * 2 + [Kind.PAUSE] * 3 + [Kind.STOP] * 2
    # A second damaged checkpoint could be the only other one, and then the run must refuse to go
    # on. The same holds before two checkpoints exist.
    if step > 9 and all(fault.kind is not Kind.CORRUPT for fault in before):
        kinds += [Kind.CORRUPT] * 3
    kind = generator.choice(kinds)
    if kind is Kind.CORRUPT:
        return kind, Target.DRIVER
    # Nothing inside a run can notice that the driver is stopped for ever.
    targets = [t for t in Target if (kind, t) != (Kind.STOP, Target.DRIVER)]
    return kind, generator.choice(targets)
