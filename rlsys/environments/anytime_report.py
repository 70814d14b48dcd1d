"""Reports of thoughts that are answered under several budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rlsys.algorithms.rea import response_tokens
from rlsys.algorithms.reflection import cut_at_budget
from rlsys.algorithms.tree_samples import THOUGHT
from rlsys.environments.report import base_report, readable_task, verdict_name
from rlsys.types import Episode, Floats, Group, GroupReport, Sample, ThoughtRecord

if TYPE_CHECKING:
    from rlsys.environments.anytime import AnytimeEnvironment
    from rlsys.tokenization.think import ThinkTokens


def report_anytime(
    group: Group, environment: AnytimeEnvironment, samples: Sequence[Sample]
) -> GroupReport:
    """Reduce a training group of anytime episodes to its report."""
    episodes = group.episodes
    shape = (len(episodes), len(environment.budgets), environment.answers)
    scores_GM = np.stack([e.scores for e in episodes]).reshape(shape).mean(axis=2)
    numbers = {
        f"score/{budget}": scores_GM[:, slot] for slot, budget in enumerate(environment.budgets)
    }
    numbers |= thought_numbers(episodes, environment.sampler.think)
    if all(e.thoughts for e in episodes):
        numbers["reflections/per_token"] = reflection_density([e.thoughts[-1] for e in episodes])
    example = _readable(group, environment)
    return base_report(group, scores_GM.mean(axis=1), numbers, samples, example)


def report_thoughts(
    group: Group, environment: AnytimeEnvironment, samples: Sequence[Sample]
) -> GroupReport:
    """Reduce an evaluation group to its report: thoughts answered under several budgets.

    `score/BUDGET` is the accuracy if the thought is ended at the budget and then answered.
    `cut/BUDGET` is the accuracy if the finished response to the largest budget is cut at BUDGET
    tokens: the answer counts only if the whole response, forced tokens included, fits the budget.
    The policy does not know the budget, so its thought under a smaller budget is the beginning of
    its thought under a larger one.
    """
    report = report_anytime(group, environment, samples)
    answers = environment.answers
    lengths_GA = np.array(
        [
            [response_length(e, len(e.scores) - 1 - a) for a in range(answers)]
            for e in group.episodes
        ]
    )
    right_GA = np.array([e.scores[::-1][:answers] for e in group.episodes])
    numbers = dict(report.numbers)
    for budget in environment.budgets:
        _, survives = cut_at_budget(lengths_GA, budget)
        numbers[f"cut/{budget}"] = (right_GA * survives).mean(axis=1).astype(np.float32)
    numbers["response/length"] = lengths_GA.mean(axis=1).astype(np.float32)
    if group.task.difficulty is not None:
        difficulty = f"{group.task.difficulty:.0f}"
        numbers[f"accuracy/difficulty_{difficulty}"] = right_GA.mean(axis=1).astype(np.float32)
        for name in ("thought/length", "reflections/per_token"):
            numbers[f"{name}/difficulty_{difficulty}"] = numbers[name]
    return replace(report, numbers=numbers)


def thought_numbers(episodes: Sequence[Episode], think: ThinkTokens) -> dict[str, Floats]:
    """Return the lengths of thoughts, and 1 for each thought that the policy ended itself."""
    thoughts = [e.segments[THOUGHT].token_ids for e in episodes]
    closed = [think.closes(t) for t in thoughts]
    return {
        "thought/length": np.array([len(t) for t in thoughts], np.float32),
        "thought/closed": np.array(closed, np.float32),
    }


def reflection_density(thoughts: Sequence[ThoughtRecord]) -> Floats:
    """Reflections per token of each thought, float32[len(thoughts)]; 0 for an empty thought."""
    counts = np.array([t.reflections for t in thoughts], np.float32)
    return counts / np.maximum([t.tokens for t in thoughts], 1).astype(np.float32)


def response_length(episode: Episode, answer: int) -> int:
    """Tokens from the end of the prompt to the end of an answer."""
    return response_tokens(episode.segments, int(episode.answer_segments[answer]))


def _readable(group: Group, environment: AnytimeEnvironment) -> dict[str, object]:
    """Return the first episode as text: the thought, each cut, each answer and its score."""
    episode = group.episodes[0]
    thought = episode.segments[THOUGHT].token_ids.tolist()
    text = environment.sampler.decode(thought)
    # Where a cut lies in the text: the tokens are not kept, so nobody could find it later.
    characters = {
        budget: min(len(environment.sampler.decode(thought[:budget])), len(text))
        for budget in environment.budgets
    }
    return {
        **readable_task(group),
        "thought": text,
        "thought_tokens": len(thought),
        "answers": [
            _readable_answer(episode, environment, slot, characters)
            for slot in range(len(episode.scores))
        ],
    }


def _readable_answer(
    episode: Episode,
    environment: AnytimeEnvironment,
    slot: int,
    characters: Mapping[int, int],
) -> dict[str, object]:
    budget = environment.budgets[slot // environment.answers]
    answer = episode.segments[episode.answer_segments[slot]]
    return {
        "budget": budget,
        "cut": min(budget, len(episode.segments[THOUGHT].token_ids)),
        "cut_characters": characters[budget],
        "text": environment.sampler.decode(answer.token_ids.tolist()),
        "tokens": len(answer.token_ids),
        "verdict": verdict_name(episode.verdicts[slot]),
        "score": float(episode.scores[slot]),
    }
