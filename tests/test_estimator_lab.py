"""The estimator lab on hand-made trees: what it reads from a checkpoint, and its figures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from rlsys.algorithms.brpo import truncation_plan
from rlsys.algorithms.samples import build_samples
from rlsys.config.loading import load_config
from rlsys.environments.report import base_report
from rlsys.training.checkpoint_files import GROUPS, seal
from rlsys.training.group_codec import StoredGroup, encode_groups
from rlsys.types import NO_PARENT, Episode, Group, Kind, Problem, Segment

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import estimator_lab as lab_module
from lab_trees import recorded_trees

BUDGETS = (2, 4, 6)
CONFIG = load_config(None, [f"environment.budgets={list(BUDGETS)}", "environment.answers=1"])


def segment(parent: int, cut: int, kind: Kind, tokens: int) -> Segment:
    sampled = kind.sampled
    return Segment(
        parent=parent,
        cut=cut,
        kind=kind,
        token_ids=np.arange(tokens, dtype=np.int32),
        logprobs=np.zeros(tokens, np.float32) if sampled else None,
        versions=(0, 0) if sampled else None,
    )


def tree(length: int, scores: list[int]) -> Episode:
    """A thought of `length` tokens, which ended itself if it is shorter than the last budget."""
    segments = [segment(NO_PARENT, 0, Kind.PROMPT, 3), segment(0, 3, Kind.THOUGHT, length)]
    places, splits = [], []
    for branch in truncation_plan(length, length < BUDGETS[-1], BUDGETS, 1):
        segments.append(segment(1, branch.cut, Kind.FORCED, 2))
        header = len(segments) - 1
        for _ in range(branch.answers):
            places.append(len(segments))
            splits.append(branch.split)
            segments.append(segment(header, 2, Kind.ANSWER, 1))
    return Episode(
        segments=tuple(segments),
        scores=np.array(scores, np.float32),
        answer_segments=np.array(places, np.int32),
        splits=np.array(splits, np.int32),
        verdicts=np.array(scores, np.int8),
    )


EPISODES = (tree(3, [0, 1, 1]), tree(6, [0, 0, 1]), tree(6, [0, 0, 0]))


def test_trees_of_a_checkpoint_are_those_that_were_rolled_out(tmp_path: Path) -> None:
    group = Group(index=4, task=Problem(id="p", text="1+1", answer="2"), episodes=EPISODES)
    samples = build_samples(group, CONFIG)
    numbers = {
        f"score/{budget}": np.array([e.scores[slot] for e in EPISODES])
        for slot, budget in enumerate(BUDGETS)
    }
    report = base_report(group, np.zeros(3), numbers, samples, {})
    folder = tmp_path / "step-1"
    (folder / "learner").mkdir(parents=True)
    (folder / GROUPS).write_bytes(encode_groups([StoredGroup(4, report, samples)]))
    seal(folder, 1, 5)
    (found,) = recorded_trees(folder, CONFIG)
    for episode, expected in zip(found, EPISODES, strict=True):
        assert episode.scores.tolist() == expected.scores.tolist()
        assert episode.splits.tolist() == expected.splits.tolist()
        assert episode.answer_segments.tolist() == expected.answer_segments.tolist()


def test_advantages_of_pieces() -> None:
    lab = lab_module.Lab(CONFIG)
    grpo = lab.advantages(EPISODES, lab_module.METHODS["GRPO, none"])
    third = 1 / 3
    # The first thought has no token in the last slot. Answers at smaller budgets are not seen.
    np.testing.assert_allclose(
        grpo,
        [
            [third, third, 0, 0, 0, third],
            [third, third, third, 0, 0, third],
            [-2 * third, -2 * third, -2 * third, 0, 0, -2 * third],
        ],
        atol=1e-6,
    )
    serial = lab.advantages(EPISODES, lab_module.METHODS["S-GRPO"])
    # Both later answers of the first thought hang from its end, so both earn 1.
    np.testing.assert_allclose(serial[0], [0, 2 * third, 0, -2 * third, third, third], atol=1e-6)


def test_figures_of_a_batch_whose_gradients_are_known() -> None:
    lab = lab_module.Lab(CONFIG)
    pieces_GPD = np.zeros((3, 6, 2), np.float32)
    pieces_GPD[:, :, 0] = np.array([[1.0], [1.0], [-1.0]])  # right episodes point to the right
    batch = lab_module.Batch([EPISODES] * 4, [pieces_GPD] * 4)
    table = lab_module.compare(lab, batch, batch, step=2)
    for name in ("GRPO, none", "GRPO, std", "REINFORCE++, batch"):
        assert table[name]["no_signal"] == 0
        assert table[name]["final"] == pytest.approx(1.0)
    table = lab_module.compare(lab, batch, lab_module.Batch(), step=2)
    assert set(table["GRPO, none"]) == {"no_signal", "signal_to_noise"}
