"""What the driver learns of originals and revisions, and of thoughts that are evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlsys.algorithms.rea import response_tokens
from rlsys.algorithms.reflection import cut_at_budget, truncation_accuracy
from rlsys.environments.anytime import THOUGHT, AnytimeEnvironment
from rlsys.environments.reflection import ORIGINAL, REVISION
from rlsys.environments.report import (
    GroupReport,
    base_report,
    reflection_density,
    report_anytime,
)
from rlsys.reflection.detector import Outcome
from rlsys.types import Decode, Episode, Floats, Group, Sample, Verdict


def report_reflections(
    group: Group, environment: AnytimeEnvironment, samples: Sequence[Sample], decode: Decode
) -> GroupReport:
    """Reduce a training group to its report; its scores are those of the originals.

    `reader/OUTCOME` are shares of thoughts; `revision/kept` is the share of a revised thought's
    tokens that the cut keeps; `revision/time_share` is the time that the group waited for revisions
    alone, in the time that it took to grow.
    """
    episodes = group.episodes
    scores_G = np.array([e.scores[ORIGINAL] for e in episodes], np.float32)
    lengths = [len(e.segments[THOUGHT].token_ids) for e in episodes]
    ends = [e.segments[THOUGHT].token_ids[-1:].tolist() for e in episodes]
    closed = [end == [environment.think.think_end_id] for end in ends]
    numbers: dict[str, Floats] = {
        "accuracy/original": scores_G,
        "thought/length": np.array(lengths, np.float32),
        "thought/closed": np.array(closed, np.float32),
        "response/length": np.array([_response(e, ORIGINAL) for e in episodes], np.float32),
        "reflections/per_token": reflection_density([e.facts[ORIGINAL] for e in episodes]),
    }
    if all("outcome" in e.facts[ORIGINAL] for e in episodes):
        numbers |= _revisions(episodes)
    return base_report(group, scores_G, numbers, samples, _readable(group, decode))


def _revisions(episodes: Sequence[Episode]) -> dict[str, Floats]:
    revised = [e for e in episodes if len(e.scores) > REVISION]
    outcomes = [e.facts[ORIGINAL]["outcome"] for e in episodes]
    # A thought without revision lost nothing by it: it is trained as its original alone.
    pairs = [(e.scores[ORIGINAL], e.scores[REVISION]) for e in revised]
    kept = [float(e.facts[REVISION]["thought_tokens"]) for e in revised]
    # A thought that is revised has at least a token.
    shares = [
        k / float(e.facts[ORIGINAL]["thought_tokens"]) for k, e in zip(kept, revised, strict=True)
    ]
    numbers = {f"reader/{o}": np.array([x == o for x in outcomes], np.float32) for o in Outcome}
    numbers |= {
        f"reader/{name}": np.array([float(e.facts[ORIGINAL][name]) for e in episodes], np.float32)
        for name in ("missing_labels", "extra_labels")
    }
    numbers |= {
        "revision/share": np.array([len(e.scores) > REVISION for e in episodes], np.float32),
        "accuracy/revised": np.array([right for _, right in pairs], np.float32),
        "truncation_accuracy": np.array([truncation_accuracy(p) for p in pairs], np.float32),
        "revision/thought/length": np.array(kept, np.float32),
        "revision/kept": np.array(shares, np.float32),
        "revision/response/length": np.array([_response(e, REVISION) for e in revised], np.float32),
        "prefix_cache/revisions": np.array(
            [float(e.facts[REVISION]["cached_share"]) for e in revised], np.float32
        ),
    }
    facts = episodes[0].facts[ORIGINAL]  # times are the group's
    seconds = {name: float(facts[name]) for name in ("seconds", "detection_s", "revision_s")}
    return numbers | {
        "revision/detection_s": np.array([seconds["detection_s"]], np.float32),
        "revision/extra_s": np.array([seconds["revision_s"]], np.float32),
        "revision/time_share": np.array([seconds["revision_s"] / seconds["seconds"]], np.float32),
    }


def report_thoughts(
    group: Group, environment: AnytimeEnvironment, samples: Sequence[Sample], decode: Decode
) -> GroupReport:
    """Reduce a group of the evaluation: thoughts answered under several budgets.

    `score/BUDGET` is what the policy answers when its thought is ended at the budget. `cut/BUDGET`
    is what is left when the response to the largest budget is cut afterwards: the answer counts if
    the whole response, forced tokens included, is no longer. The policy is not told a budget, so
    its thought under a smaller one is the beginning of its thought under a larger one.
    """
    report = report_anytime(group, environment, samples, decode)
    answers = environment.answers
    lengths_GA = np.array(
        [[_response(e, len(e.scores) - 1 - a) for a in range(answers)] for e in group.episodes]
    )
    right_GA = np.array([e.scores[::-1][:answers] for e in group.episodes])
    numbers = dict(report.numbers)
    for budget in environment.budgets:
        _, survives = cut_at_budget(lengths_GA, budget)
        numbers[f"cut/{budget}"] = (right_GA * survives).mean(axis=1).astype(np.float32)
    numbers["response/length"] = lengths_GA.mean(axis=1).astype(np.float32)
    if group.problem.difficulty is not None:
        difficulty = f"{group.problem.difficulty:.0f}"
        numbers[f"accuracy/difficulty_{difficulty}"] = right_GA.mean(axis=1).astype(np.float32)
        for name in ("thought/length", "reflections/per_token"):
            numbers[f"{name}/difficulty_{difficulty}"] = numbers[name]
    return replace(report, numbers=numbers)


def _response(episode: Episode, answer: int) -> int:
    return response_tokens(episode.segments, int(episode.answer_segments[answer]))


def _readable(group: Group, decode: Decode) -> dict[str, Any]:
    """The group's first episode in words: the thought, its answer, the cut and what came of it."""
    episode = group.episodes[0]
    thought = episode.segments[THOUGHT].token_ids
    rows = []
    for number, place in enumerate(episode.answer_segments.tolist()):
        facts = episode.facts[number]
        rows.append(
            {
                "kept": int(facts["thought_tokens"]),
                "text": decode(episode.segments[place].token_ids.tolist()),
                "verdict": Verdict(int(episode.verdicts[number])).name.lower(),
                "reflections": int(facts["reflections"]),
            }
        )
    facts = episode.facts[ORIGINAL]
    return {
        "group": group.index,
        "problem": group.problem.text,
        "gold": group.problem.answer,
        "thought": decode(thought.tolist()),
        "thought_tokens": len(thought),
        **({"reader": facts["outcome"]} if "outcome" in facts else {}),
        "original": rows[ORIGINAL],
        **({"revision": rows[REVISION]} if len(rows) > REVISION else {}),
    }
