"""Reports of episodes of several turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlsys.environments.report import LOST, base_report, readable_task, verdict_name
from rlsys.types import Decode, Episode, Floats, Group, GroupReport, Sample, TurnRecord, Verdict


def report_dialogues(
    group: Group, group_size: int, samples: Sequence[Sample], decode: Decode
) -> GroupReport:
    """Reduce a group of dialogues to its report.

    The score of an episode is its right answers divided by its problems. If the environment does
    not report the number of problems, the number of given answers is used. `tokens/TYPE` are the
    tokens of the replies to one type of question.
    """
    episodes = group.episodes
    right_G = np.array([(e.verdicts == Verdict.RIGHT).sum() for e in episodes], np.float32)
    answered_G = np.array([len(e.scores) for e in episodes], np.float32)
    problems_G = np.array([_problems(e) for e in episodes], np.float32)
    scores_G = right_G / np.maximum(problems_G, 1)
    numbers: dict[str, Floats] = {
        "return": np.array([e.scores.sum() for e in episodes], np.float32),
        "accuracy": scores_G,
        "answered": answered_G / np.maximum(problems_G, 1),
        LOST: np.array([0.0] * len(episodes) + [1.0] * (group_size - len(episodes))),
        **_reply_lengths(episodes),
    }
    budgets_G = np.array([_total_budget(e) for e in episodes])
    if budgets_G.size and budgets_G.all():
        spent_G = np.array([e.sampled_tokens() for e in episodes])
        numbers["utilisation"] = (spent_G / budgets_G).astype(np.float32)
    example = _readable(group, decode) if episodes else {}
    return base_report(group, scores_G, numbers, samples, example)


def _reply_lengths(episodes: Sequence[Episode]) -> dict[str, Floats]:
    """Return the sampled tokens of all replies, and of the replies to each type of question."""
    lengths: list[int] = []
    by_type: dict[str, list[int]] = {}
    for episode in episodes:
        for turn, segment in zip(episode.turns, episode.answer_segments, strict=True):
            length = len(episode.segments[segment].token_ids)
            lengths.append(length)
            if turn.type is not None:
                by_type.setdefault(turn.type, []).append(length)
    return {
        "reply/length": np.array(lengths, np.float32),
        **{f"tokens/{t}": np.array(by_type[t], np.float32) for t in sorted(by_type)},
    }


def _problems(episode: Episode) -> int:
    reported = episode.turns[0].problems if episode.turns else None
    return len(episode.scores) if reported is None else reported


def _total_budget(episode: Episode) -> int:
    return (episode.turns[0].total_budget or 0) if episode.turns else 0


def _readable(group: Group, decode: Decode) -> dict[str, object]:
    """Return the first episode of the group as text, turn by turn."""
    episode = group.episodes[0]
    return {
        **readable_task(group),
        "return": float(episode.scores.sum()),
        "turns": [
            {
                **_turn_fields(record),
                "prompt": decode(episode.segments[segment - 1].token_ids.tolist()),
                "reply": decode(episode.segments[segment].token_ids.tolist()),
                "tokens": len(episode.segments[segment].token_ids),
                "verdict": verdict_name(verdict),
                "reward": float(score),
            }
            for record, segment, verdict, score in zip(
                episode.turns,
                episode.answer_segments.tolist(),
                episode.verdicts,
                episode.scores,
                strict=True,
            )
        ],
    }


def _turn_fields(record: TurnRecord) -> Mapping[str, float | str]:
    """Return what the environment reported about a reply, by the names used in sample files."""
    reported = {
        "charged": record.charged,
        "counted": record.counted,
        "type": record.type,
        "answered_question": record.question,
        "end_reward": record.end_reward,
    }
    return {**record.shown, **{name: v for name, v in reported.items() if v is not None}}
