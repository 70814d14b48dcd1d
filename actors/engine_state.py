"""What an engine's actor reports about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class EngineCounts:
    """Prompt tokens since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Those that were found in the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What an actor says about itself at any time."""

    life: str
    """Differs between two processes that Ray started for the same actor."""
    serving: bool
    """True if requests are answered, with weights that were checked."""
    silent_s: float
    """Age of the oldest call that the engine's own processes have not answered yet."""
    finished_tokens: int
    """Sampled tokens of all finished requests."""
