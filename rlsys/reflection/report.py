"""Reports of originals and their revisions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlsys.algorithms.reflection import truncation_accuracy
from rlsys.algorithms.tree_samples import THOUGHT
from rlsys.environments.anytime_report import (
    reflection_density,
    response_length,
    thought_numbers,
)
from rlsys.environments.report import base_report, readable_task, verdict_name
from rlsys.environments.thoughts import ThoughtSampler
from rlsys.types import (
    Decode,
    Episode,
    Floats,
    Group,
    GroupReport,
    Outcome,
    RevisionRecord,
    RevisionTimes,
    Sample,
)

ORIGINAL, REVISION = 0, 1
"""Indices of the answers of an episode."""


def report_revisions(
    group: Group, sampler: ThoughtSampler, samples: Sequence[Sample]
) -> GroupReport:
    """Reduce a training group to its report. The scores are those of the originals.

    `reflection_model/OUTCOME` is the share of thoughts with this outcome. `revision/kept` is the
    share of tokens that the cut keeps, over the revised thoughts. `revision/time_share` is the time
    in which the group waited only for revisions, divided by the time of its whole rollout.
    """
    episodes = group.episodes
    scores_G = np.array([e.scores[ORIGINAL] for e in episodes], np.float32)
    numbers: dict[str, Floats] = {
        "accuracy/original": scores_G,
        **thought_numbers(episodes, sampler.think),
        "response/length": np.array([response_length(e, ORIGINAL) for e in episodes], np.float32),
        "reflections/per_token": reflection_density([e.thoughts[ORIGINAL] for e in episodes]),
    }
    records = [e.revision for e in episodes if e.revision is not None]
    if len(records) == len(episodes):
        numbers |= _detection_numbers(records) | _revision_numbers(episodes)
    if group.times is not None:
        numbers |= _time_numbers(group.times)
    return base_report(group, scores_G, numbers, samples, _readable(group, sampler.decode))


def _detection_numbers(records: Sequence[RevisionRecord]) -> dict[str, Floats]:
    numbers = {
        f"reflection_model/{outcome}": np.array([r.outcome == outcome for r in records], np.float32)
        for outcome in Outcome
    }
    numbers["reflection_model/missing_labels"] = np.array(
        [r.missing_labels for r in records], np.float32
    )
    numbers["reflection_model/extra_labels"] = np.array(
        [r.extra_labels for r in records], np.float32
    )
    return numbers


def _revision_numbers(episodes: Sequence[Episode]) -> dict[str, Floats]:
    revised = [e for e in episodes if len(e.scores) > REVISION]
    # A thought without a revision is trained as its original, so there is nothing to compare.
    pairs = [(e.scores[ORIGINAL], e.scores[REVISION]) for e in revised]
    kept = [e.thoughts[REVISION].tokens for e in revised]
    # The divisor is not 0: a revised thought has at least one chunk, so at least one token.
    shares = [k / e.thoughts[ORIGINAL].tokens for k, e in zip(kept, revised, strict=True)]
    cached = [e.revision.cached_share for e in revised if e.revision is not None]
    return {
        "revision/share": np.array([len(e.scores) > REVISION for e in episodes], np.float32),
        "accuracy/revised": np.array([right for _, right in pairs], np.float32),
        "truncation_accuracy": np.array([truncation_accuracy(p) for p in pairs], np.float32),
        "revision/thought/length": np.array(kept, np.float32),
        "revision/kept": np.array(shares, np.float32),
        "revision/response/length": np.array(
            [response_length(e, REVISION) for e in revised], np.float32
        ),
        "prefix_cache/revisions": np.array(cached, np.float32),
    }


def _time_numbers(times: RevisionTimes) -> dict[str, Floats]:
    return {
        "revision/detection_s": np.array([times.detection_s], np.float32),
        "revision/extra_s": np.array([times.extra_s], np.float32),
        "revision/time_share": np.array([times.extra_s / times.total_s], np.float32),
    }


def _readable(group: Group, decode: Decode) -> dict[str, object]:
    """Return the first episode as text: the thought, its answer, the cut and the revision."""
    episode = group.episodes[0]
    thought = episode.segments[THOUGHT].token_ids
    answers = [
        {
            "kept": record.tokens,
            "text": decode(episode.segments[place].token_ids.tolist()),
            "verdict": verdict_name(verdict),
            "reflections": record.reflections,
        }
        for record, place, verdict in zip(
            episode.thoughts, episode.answer_segments.tolist(), episode.verdicts, strict=True
        )
    ]
    return {
        **readable_task(group),
        "thought": decode(thought.tolist()),
        "thought_tokens": len(thought),
        **({} if episode.revision is None else {"reflection_model": episode.revision.outcome}),
        "original": answers[ORIGINAL],
        **({"revision": answers[REVISION]} if len(answers) > REVISION else {}),
    }
