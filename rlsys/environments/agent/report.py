"""Reports of episodes that agents played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlsys.environments.report import report_episodes
from rlsys.types import AgentRecord, Decode, Episode, Floats, Group, GroupReport, Sample


def report_agents(
    group: Group, samples: Sequence[Sample], decode: Decode, budget: int
) -> GroupReport:
    """Reduce a group to its report.

    Beside the numbers of every environment: `agent/failed` is 1 for an episode whose agent failed,
    `agent/calls` the number of its replies, `agent/branches` that of its separate chats, and
    `agent/budget` the share of its budget that it used.
    """
    report = report_episodes(group, samples, decode)
    records = [_record(episode) for episode in group.episodes]
    numbers: dict[str, Floats] = {
        **report.numbers,
        "agent/failed": np.array([r.failure is not None for r in records], np.float32),
        "agent/calls": np.array([r.calls for r in records], np.float32),
        "agent/branches": np.array([r.branches for r in records], np.float32),
        "agent/budget": np.array([e.sampled_tokens() / budget for e in group.episodes], np.float32),
    }
    failures = [r.failure for r in records if r.failure is not None]
    return replace(report, numbers=numbers, example=report.example | {"failures": failures})


def _record(episode: Episode) -> AgentRecord:
    assert episode.agent is not None
    return episode.agent
