"""Tokens of an episode and of a training step, and the rows that a learner rank trains.

Episodes are planned at one length each, the longest possible one unless an expected length is
given. So memory is the worst case, and seconds are those of a step in which no thought ends early.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeGuard

from learner.plan import BLOCK_TOKENS, row_width
from rlsys.config import AnytimeConfig, RunConfig
from rlsys.config.environments import ReflectionEpisodes, ThoughtSection

TOKENS_PER_CHARACTER: Final = 0.4
"""Of forced text such as `**Final Answer**`, whose tokenizer is not loaded here. It overestimates
English text, which has 0.25, since forced text is mostly punctuation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Expected lengths in tokens; None takes the largest that the configuration allows."""

    prompt: int | None = None
    thought: int | None = None
    answer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTree:
    """Token counts of one episode: a prompt, a thought, and answers that leave it at cuts."""

    prompt: int
    thought: int
    branches: tuple[tuple[int, int], ...] = ()
    """Per cut: tokens of the thought that are kept, and the number of answers after them."""
    forced: int = 0
    """Tokens between a cut and its answers, shared by them."""
    answer: int = 0

    @property
    def answers(self) -> int:
        """Answers of all cuts."""
        return sum(count for _, count in self.branches)

    @property
    def sampled(self) -> int:
        """Tokens that the engines sample, which are those that the learner trains."""
        return self.thought + self.answers * self.answer

    @property
    def tokens(self) -> int:
        """Tokens of the packed tree: every token once."""
        return self.prompt + self.sampled + len(self.branches) * self.forced

    @property
    def longest_path(self) -> int:
        """Tokens of the longest sequence: what an engine must hold."""
        return self.prompt + self.thought + (self.forced + self.answer if self.branches else 0)

    @property
    def trunk(self) -> int:
        """Tokens of prompt and thought, which come first in the packed tree."""
        return self.prompt + self.thought

    @property
    def trunk_pairs(self) -> int:
        """Pairs of query and key within the trunk."""
        return _pairs(0, self.trunk)

    @property
    def visible_pairs(self) -> int:
        """Pairs of query and key that the tree mask leaves visible: every token sees its path."""
        pairs = self.trunk_pairs
        for kept, count in self.branches:
            start = self.prompt + kept
            pairs += _pairs(start, self.forced)
            pairs += count * _pairs(start + self.forced, self.answer)
        return pairs


def _pairs(before: int, tokens: int) -> int:
    """Pairs of a run of tokens that all see the `before` tokens, and their predecessors."""
    return tokens * before + tokens * (tokens + 1) // 2


def episode_tree(config: RunConfig, lengths: Lengths) -> EpisodeTree:
    """Return the tree of an episode.

    Episodes of several turns, and those of environments outside rlsys, are planned as one chain of
    as many tokens as the environment may sample. Text that the environment itself adds is unknown.
    """
    environment = config.environment
    prompt = lengths.prompt or config.data.prompt.max_tokens
    if not isinstance(environment, ThoughtSection):
        thought = min(lengths.thought or environment.longest_episode, environment.longest_episode)
        return EpisodeTree(prompt=prompt, thought=thought)
    thought = min(lengths.thought or environment.longest_thought, environment.longest_thought)
    text = environment.closing + (environment.think_end or "") + environment.answer_header
    most = environment.revision_tokens if _is_free(environment) else environment.answer_tokens
    return EpisodeTree(
        prompt=prompt,
        thought=thought,
        branches=_branches(environment, thought),
        forced=round(TOKENS_PER_CHARACTER * len(text)),
        answer=min(lengths.answer or most, most),
    )


def _branches(environment: ThoughtSection, thought: int) -> tuple[tuple[int, int], ...]:
    if isinstance(environment, AnytimeConfig):
        # Budgets from the thought's end on share one cut, as in rlsys.algorithms.brpo.
        cuts = [min(budget, thought) for budget in environment.budgets]
        return tuple((cut, environment.answers * cuts.count(cut)) for cut in sorted(set(cuts)))
    original = () if _is_free(environment) else ((thought, 1),)
    if isinstance(environment, ReflectionEpisodes) and environment.revision is not None:
        return ((thought // 2, 1), *original)  # the reflection model may cut anywhere
    return original


def _is_free(environment: ThoughtSection) -> TypeGuard[ReflectionEpisodes]:
    """Return True if the budget holds thought and answer of an original together."""
    return isinstance(environment, ReflectionEpisodes) and environment.originals == "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerRows:
    """What one learner rank computes in one training step."""

    row_tokens: int
    """Length of a row; rows on GPUs are a multiple of 128."""
    rows: int
    """Rows of the rank in all optimizer steps, empty ones included."""
    passes: int
    """Forward and backward passes: micro-batches of all optimizer steps."""
    rows_per_pass: int
    """Rows of the largest micro-batch."""
    trees_per_row: int
    """Trees of the fullest row."""
    sequence_ranks: int = 1
    """Ranks that share these rows; each computes as many tokens of them."""

    @property
    def slots(self) -> int:
        """Tokens of the rank in all rows, padding included."""
        return -(-self.rows * self.row_tokens // self.sequence_ranks)

    @property
    def pass_slots(self) -> int:
        """Tokens of the rank in the rows of the largest micro-batch, padding included."""
        return -(-self.rows_per_pass * self.row_tokens // self.sequence_ranks)


def learner_rows(config: RunConfig, tree: EpisodeTree) -> LearnerRows:
    """Return the rows of a rank, as learner.plan and learner.batch make them of equal trees."""
    learner, batch = config.learner, config.batch
    width = row_width(tree.tokens, learner.row_tokens)
    episodes = batch.episodes // batch.optimizer_steps
    rows = -(-episodes // (width // tree.tokens))
    per_rank = -(-rows // learner.data_parallel)
    # The trees are spread over all rows of the ranks, so that these cost about the same.
    fullest = -(-episodes // (per_rank * learner.data_parallel))
    if learner.gpus_per_rank:
        # Rows that none of them fills are shorter.
        width = min(width, row_width(fullest * tree.tokens, BLOCK_TOKENS))
        width = -(-width // BLOCK_TOKENS) * BLOCK_TOKENS
    else:
        width = fullest * tree.tokens  # on the CPU rows are as wide as the fullest one
    passes = -(-per_rank // learner.micro_batch_rows)
    return LearnerRows(
        row_tokens=width,
        rows=per_rank * batch.optimizer_steps,
        passes=passes * batch.optimizer_steps,
        rows_per_pass=-(-per_rank // passes),
        trees_per_row=fullest,
        sequence_ranks=learner.sequence_ranks,
    )


def fullest_rows(config: RunConfig, tree: EpisodeTree, rows: LearnerRows) -> LearnerRows:
    """Return `rows` as wide as episodes of up to `tree` may make them.

    Somewhat shorter episodes can fill rows better: five of 808 tokens fit into a row of 4,096, in
    which four of 850 leave room. The rows of a step hold no more tokens than with the longest ones.
    """
    learner = config.learner
    width = -(-row_width(tree.tokens, learner.row_tokens) // BLOCK_TOKENS) * BLOCK_TOKENS
    step = rows.rows // config.batch.optimizer_steps * rows.row_tokens
    width = min(width, step // rows.rows_per_pass)
    return replace(rows, row_tokens=max(width, rows.row_tokens))
