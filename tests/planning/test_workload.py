"""Trees and rows of the plan against those that the learner packs."""

from __future__ import annotations

import numpy as np

from learner.packing import flatten
from learner.plan import make_plan
from rlsys.config import BatchConfig, LearnerConfig, RunConfig
from rlsys.config.loading import load_config
from rlsys.planning.workload import (
    EpisodeTree,
    Lengths,
    episode_tree,
    fullest_rows,
    learner_rows,
)
from rlsys.types import NO_PARENT, Kind, Sample, Segment


def sample_of(tree: EpisodeTree) -> Sample:
    """The sample that a tree plans."""

    def segment(parent: int, cut: int, kind: Kind, tokens: int) -> Segment:
        return Segment(
            parent=parent,
            cut=cut,
            kind=kind,
            token_ids=np.zeros(tokens, np.int32),
            logprobs=np.zeros(tokens, np.float32) if kind.sampled else None,
            versions=(0, 0) if kind.sampled else None,
        )

    segments = [
        segment(NO_PARENT, 0, Kind.PROMPT, tree.prompt),
        segment(0, tree.prompt, Kind.THOUGHT, tree.thought),
    ]
    for kept, answers in tree.branches:
        segments.append(segment(1, kept, Kind.FORCED, tree.forced))
        forced = len(segments) - 1
        segments += [segment(forced, tree.forced, Kind.ANSWER, tree.answer)] * answers
    return Sample(segments=tuple(segments), advantages=(None,) * len(segments))


TREE = EpisodeTree(prompt=7, thought=40, branches=((10, 2), (40, 4)), forced=3, answer=5)


def test_a_tree_has_the_tokens_of_the_sample_that_is_packed() -> None:
    # 7 + 40 + 2 forced texts of 3 + 6 answers of 5
    assert (TREE.tokens, TREE.sampled, TREE.longest_path) == (83, 70, 55)
    packed = flatten(sample_of(TREE))
    assert len(packed.token_ids) == TREE.tokens
    # A token sees itself and everything before it on its path, so its depth + 1 tokens.
    assert int((packed.positions + 1).sum()) == TREE.visible_pairs


def test_the_tree_of_measured_rows() -> None:
    branches = tuple((2000 * number, 4) for number in range(1, 5))
    tree = EpisodeTree(prompt=100, thought=8000, branches=branches, forced=8, answer=118)
    assert tree.tokens == 10_020  # benchmarks/results/learner_speed_H100.jsonl: 80,160 / 8


def test_episodes_of_a_configuration() -> None:
    words = [
        "environment.budgets=[16,32,48]",
        "environment.answers=2",
        "environment.answer_tokens=6",
        "environment.closing=",
        "environment.think_end=</think>",
        "environment.answer_header=A",
    ]
    config = load_config(None, words, RunConfig)
    longest = episode_tree(config, Lengths())
    assert longest == EpisodeTree(
        prompt=1024, thought=48, branches=((16, 2), (32, 2), (48, 2)), forced=4, answer=6
    )
    # Budgets from the end of the thought on share a cut, so there are always 6 answers.
    shorter = episode_tree(config, Lengths(prompt=20, thought=20, answer=3))
    assert (shorter.branches, shorter.prompt, shorter.answer) == (((16, 2), (20, 4)), 20, 3)
    chain = load_config(
        None, ["environment.type=economics", "algorithm.method=turn_grpo"], RunConfig
    )
    assert episode_tree(chain, Lengths()).tokens == 1024 + chain.environment.longest_episode


def test_a_free_original_has_its_answer_within_the_budget() -> None:
    words = [
        *("environment.type=reflection", "algorithm.method=rea", "environment.budget=400"),
        *("environment.originals=free", "environment.answer_tokens=50"),
    ]
    tree = episode_tree(load_config(None, words, RunConfig), Lengths(prompt=10))
    assert (tree.tokens, tree.branches) == (410, ())
    words += ["environment.revision.model.path=tiny", "environment.revision.answer_tokens=30"]
    tree = episode_tree(load_config(None, words, RunConfig), Lengths(prompt=10))
    assert (tree.branches, tree.answer, tree.sampled) == (((200, 1),), 30, 430)


def test_rows_are_those_of_the_learner_s_plan() -> None:
    cases = [
        # problems, group size, optimizer steps, ranks, row_tokens, micro_batch_rows, sequence_ranks
        (4, 8, 1, 1, 512, 8, 1),
        (8, 4, 2, 2, 1024, 2, 1),
        (5, 3, 1, 2, 200, 3, 1),
        (16, 8, 4, 3, 300, 8, 1),
        (2, 1, 1, 1, 83, 1, 1),
        (3, 7, 1, 4, 64, 2, 1),
        (3, 7, 1, 4, 64, 2, 2),
        (8, 4, 2, 4, 1024, 2, 4),
    ]
    for problems, group_size, steps, ranks, row_tokens, micro, shared in cases:
        config = RunConfig.model_construct(
            batch=BatchConfig(problems=problems, group_size=group_size, optimizer_steps=steps),
            learner=LearnerConfig(
                ranks=ranks,
                gpus_per_rank=1,
                row_tokens=row_tokens,
                micro_batch_rows=micro,
                sequence_ranks=shared,
            ),
        )
        rows = learner_rows(config, TREE)
        sizes = [[(TREE.tokens, TREE.sampled)] * group_size] * problems
        groups = ranks // shared
        plans = make_plan(sizes, row_tokens=row_tokens, ranks=groups, optimizer_steps=steps)
        real = [step.rows for plan in plans for step in plan.steps]
        assert rows.rows == steps * len(real[0]), row_tokens
        assert rows.trees_per_row == max(len(row) for step in real for row in step)
        assert rows.row_tokens == -(-plans[0].row_tokens // 128) * 128, row_tokens
        assert rows.slots == rows.rows * rows.row_tokens // shared
        passes = -(-len(real[0]) // micro)
        assert (rows.passes, rows.rows_per_pass) == (steps * passes, -(-len(real[0]) // passes))


def test_shorter_episodes_fill_rows_better() -> None:
    tree = EpisodeTree(prompt=64, thought=786)  # 850 tokens
    cases = [
        # row_tokens, micro_batch_rows, rows of the longest episodes, as full as can be
        (4096, 2, 3584, 4096),  # 16 rows of 4 x 850 tokens, but 5 x 808 fit as well
        (4096, 16, 3584, 3584),  # a pass has all rows, and fuller rows would be fewer
        (8192, 2, 7168, 8192),  # 8 rows of 8 x 850 tokens, but 10 x 800 fit as well
        (512, 2, 896, 896),  # an episode for itself
    ]
    for row_tokens, micro, planned, fullest in cases:
        config = RunConfig.model_construct(
            batch=BatchConfig(problems=8, group_size=8),
            learner=LearnerConfig(gpus_per_rank=1, row_tokens=row_tokens, micro_batch_rows=micro),
        )
        rows = learner_rows(config, tree)
        found = rows.row_tokens, fullest_rows(config, tree, rows).row_tokens
        assert found == (planned, fullest), row_tokens
