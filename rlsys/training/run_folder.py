"""What belongs to a run folder as a whole: its configuration and the rule for resuming it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlsys.config import RunConfig
from rlsys.config.loading import load_recorded
from rlsys.errors import ConfigError
from rlsys.training.checkpoints import complete_steps

CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"

FREE_KEYS = (
    "name",
    "run_dir",
    "steps",
    "learner",
    "generation",
    "sync",
    "rollout",
    "grading",
    "evaluation",
    "checkpoint",
    "watchdog",
)
"""Sections that say how long, how fast and where a run goes, not what it learns."""
MEANING_WITHIN = ("generation.temperature", "learner.lora")
"""Exceptions: keys below FREE_KEYS that do change what is learned. The optimizer's settings are
free: a run that broke off is continued with a smaller learning rate."""


def last_checkpoint(run_dir: Path) -> int:
    """Step of the newest complete checkpoint in `run_dir`, 0 if there is none."""
    return max(complete_steps(run_dir / CHECKPOINTS), default=0)


def check_resume(config: RunConfig) -> None:
    """Refuse to go on in config.run_dir with a configuration that means another run.

    A folder without a checkpoint holds nothing to go on with and accepts any configuration.

    Raises ConfigError naming the first key that differs.
    """
    if not last_checkpoint(config.run_dir):
        return
    path = config.run_dir / CONFIG
    recorded, asked = load_recorded(path).model_dump(mode="json"), config.model_dump(mode="json")
    for key, before, now in _differences(recorded, asked):
        if _changes_meaning(key):
            raise ConfigError(
                f"{key} is {now!r} but the run in {config.run_dir} was trained with {before!r}; "
                f"set it back, or give another run_dir for a new run"
            )


def _differences(
    before: dict[str, object], now: dict[str, object], prefix: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Dotted key and both values of every difference, in the order of the schema."""
    for name in {**now, **before}:
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}", old, new


def _changes_meaning(key: str) -> bool:
    within = any(key == known or key.startswith(f"{known}.") for known in MEANING_WITHIN)
    return within or key.split(".")[0] not in FREE_KEYS
