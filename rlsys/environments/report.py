"""What the driver learns of a group: numbers and one readable episode, never tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsys.environments.anytime import THOUGHT, AnytimeEnvironment
from rlsys.types import Decode, Episode, Floats, Group, Sample, Verdict

LOST = "episodes/lost"
"""Metric: share of episodes that were lost in every attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """Numbers of one finished group of G episodes."""

    index: int
    problem_id: str
    difficulty: float | None
    versions: tuple[int, int] | None
    """Oldest and newest policy version among the sampled tokens; None if nothing was sampled."""
    scores_G: Floats
    """How well each episode did, from 0 (nothing right) to 1 (everything right)."""
    numbers: Mapping[str, Floats]
    """Metric name to values, one per episode, reply or whatever the metric is a mean of."""
    invalid: int
    """Answers whose grading failed or timed out."""
    answers: int
    """Answers graded in all."""
    sampled_tokens: int
    sizes: tuple[tuple[int, int], ...]
    """Per sample, tokens it packs to and tokens it trains."""
    example: dict[str, Any]
    """One episode in words; empty if the group has none."""


def report_anytime(
    group: Group, environment: AnytimeEnvironment, samples: Sequence[Sample], decode: Decode
) -> GroupReport:
    """Reduce a group of anytime episodes to its report."""
    episodes = group.episodes
    shape = (len(episodes), len(environment.budgets), environment.answers)
    scores_GM = np.stack([e.scores for e in episodes]).reshape(shape).mean(axis=2)
    thoughts = [e.segments[THOUGHT].token_ids for e in episodes]
    end = environment.think.think_end_id
    numbers = {
        f"score/{budget}": scores_GM[:, slot] for slot, budget in enumerate(environment.budgets)
    }
    numbers["thought/length"] = np.array([len(t) for t in thoughts], np.float32)
    numbers["thought/closed"] = np.array(
        [len(t) > 0 and t[-1] == end for t in thoughts], np.float32
    )
    if all(e.facts for e in episodes):
        numbers["reflections/per_token"] = reflection_density([e.facts[-1] for e in episodes])
    example = _readable_anytime(group, environment, decode)
    return base_report(group, scores_GM.mean(axis=1), numbers, samples, example)


def report_dialogues(
    group: Group, group_size: int, samples: Sequence[Sample], decode: Decode
) -> GroupReport:
    """Reduce a group of dialogues to its report.

    Where the environment tells the number of problems, an episode's score is right answers over
    it; else over the answers given. `tokens/TYPE` are the tokens of replies to a type of question.
    """
    episodes = group.episodes
    right_G = np.array([(e.verdicts == Verdict.RIGHT).sum() for e in episodes], np.float32)
    answered_G = np.array([len(e.scores) for e in episodes], np.float32)
    problems_G = np.array([_fact(e, "problems", len(e.scores)) for e in episodes], np.float32)
    replies = [(e, i) for e in episodes for i in range(len(e.scores))]
    lengths = [len(e.segments[e.answer_segments[i]].token_ids) for e, i in replies]
    scores_G = right_G / np.maximum(problems_G, 1)
    numbers: dict[str, Floats] = {
        "return": np.array([e.scores.sum() for e in episodes], np.float32),
        "accuracy": scores_G,
        "answered": answered_G / np.maximum(problems_G, 1),
        "reply/length": np.array(lengths, np.float32),
        LOST: np.array([0.0] * len(episodes) + [1.0] * (group_size - len(episodes))),
    }
    budgets_G = np.array([_fact(e, "total_budget", 0) for e in episodes])
    if budgets_G.size and budgets_G.all():
        spent_G = np.array([e.sampled_tokens() for e in episodes])
        numbers["utilisation"] = (spent_G / budgets_G).astype(np.float32)
    kinds = [str(e.facts[i].get("type", "")) if e.facts else "" for e, i in replies]
    for kind in sorted(set(kinds) - {""}):
        of_kind = [n for n, k in zip(lengths, kinds, strict=True) if k == kind]
        numbers[f"tokens/{kind}"] = np.array(of_kind, np.float32)
    example = _readable_dialogue(group, decode) if episodes else {}
    return base_report(group, scores_G, numbers, samples, example)


def base_report(
    group: Group,
    scores_G: NDArray[np.floating[Any]],
    numbers: Mapping[str, Floats],
    samples: Sequence[Sample],
    example: dict[str, Any],
) -> GroupReport:
    """Fill in what is the same for every kind of group."""
    episodes = group.episodes
    sampled = sum(e.sampled_tokens() for e in episodes)
    return GroupReport(
        index=group.index,
        problem_id=group.problem.id,
        difficulty=group.problem.difficulty,
        versions=group.versions if sampled else None,
        scores_G=scores_G.astype(np.float32),
        numbers=numbers,
        invalid=sum(int((e.verdicts == Verdict.INVALID).sum()) for e in episodes),
        answers=sum(len(e.scores) for e in episodes),
        sampled_tokens=sampled,
        sizes=tuple((s.num_tokens, s.num_trained) for s in samples),
        example=example,
    )


def reflection_density(facts: Sequence[Mapping[str, float | str]]) -> Floats:
    """Reflections per token of thoughts, from what their environment counted; 0 without tokens."""
    counts = np.array([float(f["reflections"]) for f in facts], np.float32)
    return counts / np.maximum([float(f["thought_tokens"]) for f in facts], 1).astype(np.float32)


def _fact(episode: Episode, name: str, default: float) -> float:
    return float(episode.facts[0].get(name, default)) if episode.facts else default


def _readable_anytime(
    group: Group, environment: AnytimeEnvironment, decode: Decode
) -> dict[str, Any]:
    """The group's first episode in words: the thought, each cut, each answer and its score."""
    episode = group.episodes[0]
    thought = episode.segments[THOUGHT].token_ids.tolist()
    return {
        "group": group.index,
        "problem": group.problem.text,
        "gold": group.problem.answer,
        "thought": decode(thought),
        "thought_tokens": len(thought),
        "answers": [
            _readable_answer(episode, environment, slot, decode)
            for slot in range(len(episode.scores))
        ],
    }


def _readable_answer(
    episode: Episode, environment: AnytimeEnvironment, slot: int, decode: Decode
) -> dict[str, Any]:
    budget = environment.budgets[slot // environment.answers]
    answer = episode.segments[episode.answer_segments[slot]]
    return {
        "budget": budget,
        "cut": min(budget, len(episode.segments[THOUGHT].token_ids)),
        "text": decode(answer.token_ids.tolist()),
        "verdict": Verdict(int(episode.verdicts[slot])).name.lower(),
        "score": float(episode.scores[slot]),
    }


def _readable_dialogue(group: Group, decode: Decode) -> dict[str, Any]:
    """The group's first episode in words, turn by turn."""
    episode = group.episodes[0]
    return {
        "group": group.index,
        "seed": int(group.problem.id),
        "return": float(episode.scores.sum()),
        "turns": [
            {
                **(episode.facts[turn] if episode.facts else {}),
                "prompt": decode(episode.segments[segment - 1].token_ids.tolist()),
                "reply": decode(episode.segments[segment].token_ids.tolist()),
                "tokens": len(episode.segments[segment].token_ids),
                "verdict": Verdict(int(episode.verdicts[turn])).name.lower(),
                "reward": float(episode.scores[turn]),
            }
            for turn, segment in enumerate(episode.answer_segments.tolist())
        ],
    }
