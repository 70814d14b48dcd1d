"""From samples to rows: the layout of a token tree, rows of many trees, rows dealt to ranks.

A tree is laid out in depth-first preorder, and a segment comes before its branches: first all of
its own tokens, then its branches, each with everything below it, those with the last cut first.
Every subtree is then one contiguous range, so two integers per token describe a tree of any depth:

    parents[i]   index of the token before i on its path: its hidden state predicts token i
    exits[i]     end (exclusive) of the range that holds i and everything below it

Query q sees key k if and only if k <= q < exits[k]. Several trees may stand in one row if both
numbers are shifted by the index of the tree's first token: a key's range ends with its tree, so no
token sees another tree, and the attention mask needs no further argument.

Letters of shapes: T tokens of a tree or a row, R rows.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlsys.types import NO_PARENT, Floats, Sample, Segment, Tokens

NO_TREE = -1
"""Value of PackedRows.trees on padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTree:
    """One sample flattened: arrays of shape [T], tokens in depth-first order.

    Example: thought `a b c` with answers `x` after `a` and `y` after `b` is laid out `a b c y x`:
    positions 0 1 2 2 1, parents -1 0 1 1 0, exits 5 4 3 4 5.
    """

    token_ids: Tokens
    positions: Tokens
    """Depth in the tree, which is the index in the root-to-leaf sequence."""
    parents: Tokens
    """Index of the predecessor; -1 for a root token, whose log-prob is undefined."""
    exits: Tokens
    """Index just past the token's subtree."""
    trained: NDArray[np.bool_]
    """True where the token has an advantage."""
    logprobs: Floats
    """Sampling log-probs; 0 where nothing was sampled."""
    advantages: Floats
    """0 where not trained."""
    weights: Floats
    """The segment's factor on the loss times the rows the token stands for; 0 where not trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Rows of whole trees: arrays of shape [R, T] with the fields of PackedTree.

    Padding comes last in a row: id 0, position 0, no parent, sees only itself.
    """

    token_ids: Tokens
    positions: Tokens
    parents: Tokens
    exits: Tokens
    trained: NDArray[np.bool_]
    logprobs: Floats
    advantages: Floats
    weights: Floats
    trees: Tokens
    """Number of the token's tree within its row; NO_TREE for padding."""

    @property
    def num_tokens(self) -> int:
        """Tokens of trees, padding left out."""
        return int(np.count_nonzero(self.trees != NO_TREE))

    @property
    def num_pairs(self) -> int:
        """Pairs of a query and a key that it sees: itself and the tokens before it on its path."""
        return int((self.positions[self.trees != NO_TREE].astype(np.int64) + 1).sum())

    @property
    def trunk(self) -> int:
        """Tokens at the begin of every row that have no branch between them.

        Each follows the one before on its path.
        """
        follows_RT = self.parents == np.arange(-1, self.parents.shape[1] - 1)
        return int(np.cumprod(follows_RT, axis=1).sum(axis=1).min(initial=self.parents.shape[1]))


def flatten(sample: Sample) -> PackedTree:
    """Lay a sample's tree out in depth-first order.

    A segment with cut 0 follows the token before its parent's first one. If a segment has no
    tokens, its children follow the token that the segment itself would follow.

    Raises:
        ValueError: a cut exceeds its parent's length, or an unsampled segment has advantages.
    """
    segments = sample.segments
    starts, firsts, depths, exits = _layout(segments)
    shape = sum(len(segment.token_ids) for segment in segments)
    tree = PackedTree(
        token_ids=np.empty(shape, np.int32),
        positions=np.empty(shape, np.int32),
        parents=np.empty(shape, np.int32),
        exits=np.empty(shape, np.int32),
        trained=np.zeros(shape, np.bool_),
        logprobs=np.zeros(shape, np.float32),
        advantages=np.zeros(shape, np.float32),
        weights=np.zeros(shape, np.float32),
    )
    for s, (segment, advantages) in enumerate(zip(segments, sample.advantages, strict=True)):
        length = len(segment.token_ids)
        at = slice(starts[s], starts[s] + length)
        tree.token_ids[at] = segment.token_ids
        tree.positions[at] = np.arange(depths[s], depths[s] + length)
        tree.parents[at] = np.arange(starts[s] - 1, starts[s] + length - 1)
        tree.parents[at][:1] = firsts[s]  # a slice, because a segment may have no tokens
        tree.exits[at] = exits[s]
        if segment.logprobs is not None:
            tree.logprobs[at] = segment.logprobs
        if advantages is not None:
            if not segment.kind.sampled:
                raise ValueError(f"segment {s} is {segment.kind.name}, which is never trained")
            tree.trained[at] = True
            tree.advantages[at] = advantages
            tree.weights[at] = sample.weights[s] if sample.weights else 1.0
            # A token that several rows share is here once, and weighs as much as its copies would.
            if sample.rows and (rows := sample.rows[s]) is not None:
                tree.weights[at] *= rows
    return tree


def _layout(
    segments: Sequence[Segment],
) -> tuple[list[int], list[int], list[int], list[NDArray[np.int64]]]:
    """Per segment: index of its first token, index before that one, its depth, its tokens' exits.

    The branches of a segment come after all of its tokens, the last cut first. The branches that
    leave after token j or later then directly follow the segment, and end token j's range.
    """
    lengths = [len(segment.token_ids) for segment in segments]
    # Sizes of subtrees need the children first. A child always has the larger index, so one pass
    # from the end does it, and the second pass from the front finds every parent done already.
    sizes = list(lengths)
    children: dict[int, list[int]] = defaultdict(list)
    for s in range(len(segments) - 1, -1, -1):
        parent, cut = segments[s].parent, segments[s].cut
        children[parent].append(s)
        if parent != NO_PARENT:
            sizes[parent] += sizes[s]
            if cut > lengths[parent]:
                raise ValueError(
                    f"segment {s} cuts after {cut} of its parent's {lengths[parent]} tokens"
                )

    starts, firsts, depths = [0] * len(segments), [NO_PARENT] * len(segments), [0] * len(segments)
    exits: list[NDArray[np.int64]] = []
    start = 0
    for root in reversed(children[NO_PARENT]):  # collected from the end, so this is their order
        starts[root] = start
        start += sizes[root]
    for s, length in enumerate(lengths):
        end = starts[s] + length
        below = np.zeros(length + 1, np.int64)  # tokens of the branches at every cut
        for child in sorted(children[s], key=lambda child: (-segments[child].cut, child)):
            cut = segments[child].cut
            starts[child], depths[child] = end, depths[s] + cut
            firsts[child] = starts[s] + cut - 1 if cut else firsts[s]
            end += sizes[child]
            below[cut] += sizes[child]
        # Token j is on the path of the branches at cuts j + 1 and later.
        exits.append(starts[s] + length + below[::-1].cumsum()[::-1][1:])
    return starts, firsts, depths, exits


def assign_rows(num_tokens: Sequence[int], *, row_tokens: int, ranks: int) -> list[list[list[int]]]:
    """Put trees into rows and deal the rows to ranks: rank -> rows -> indices of `num_tokens`.

    First-fit decreasing finds a small number of rows; the trees are then spread over that many (a
    multiple of `ranks`) so that all rows have about the same length. Rows are dealt in serpentine
    order (ranks 0 1 2, then 2 1 0), those with the most attention first. Each rank gets the same
    number of rows; the last ones may be empty. Deterministic.

    Raises:
        ValueError: a tree is longer than `row_tokens`; the caller makes the rows longer.
    """
    longest = max(num_tokens, default=0)
    if longest > row_tokens:
        raise ValueError(f"a tree of {longest} tokens exceeds a row of {row_tokens}")
    order = sorted(range(len(num_tokens)), key=lambda i: -num_tokens[i])
    dense = _first_fit(order, num_tokens, row_tokens)
    # Every rank needs the same number of rows, since each forward and backward pass contains
    # collectives that all ranks have to enter.
    dense.extend([] for _ in range(-len(dense) % ranks))
    even = _spread(order, num_tokens, len(dense))

    def load(row: list[int]) -> int:
        return sum(num_tokens[i] for i in row)

    # Filling the lightest row first may need a longer row than first fit does.
    rows = even if max(map(load, even), default=0) <= row_tokens else dense

    def attention(row: list[int]) -> int:
        # A token sees its own tree only, so a tree's pairs of query and key grow with its square.
        return sum(num_tokens[i] ** 2 for i in row)

    # On a GPU all rows have the same width, padding included, and differ in attention alone.
    rows = sorted(rows, key=attention, reverse=True)
    dealt: list[list[list[int]]] = [[] for _ in range(ranks)]
    # Ranks wait for each other after every micro-batch, so their k-th rows should cost the same.
    # Turning around after each round keeps the first rank from getting the longer row every time.
    for number, row in enumerate(rows):
        turn, seat = divmod(number, ranks)
        dealt[seat if turn % 2 == 0 else ranks - 1 - seat].append(row)
    return dealt


def _first_fit(order: Sequence[int], num_tokens: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Put each tree into the first row with room for it."""
    rows: list[list[int]] = []
    room: list[int] = []
    for index in order:
        row = next((r for r, free in enumerate(room) if free >= num_tokens[index]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(row_tokens)
        rows[row].append(index)
        room[row] -= num_tokens[index]
    return rows


def _spread(order: Sequence[int], num_tokens: Sequence[int], count: int) -> list[list[int]]:
    """Put each tree into the lightest of `count` rows."""
    rows: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, r) for r in range(count)]
    for index in order:
        load, r = heapq.heappop(loads)
        rows[r].append(index)
        heapq.heappush(loads, (load + num_tokens[index], r))
    return rows


def pack_rows(
    rows: Sequence[Sequence[PackedTree]], row_tokens: int, *, multiple_of: int = 1
) -> PackedRows:
    """Write trees side by side into [R, T] arrays; T is `row_tokens` rounded up to `multiple_of`.

    Raises:
        ValueError: the trees of a row do not fit into it.
    """
    shape = (len(rows), -(-row_tokens // multiple_of) * multiple_of)
    packed = PackedRows(
        token_ids=np.zeros(shape, np.int32),
        positions=np.zeros(shape, np.int32),
        parents=np.full(shape, NO_PARENT, np.int32),
        # Padding sees itself: a query without any key would make the softmax NaN.
        exits=np.tile(np.arange(1, shape[1] + 1, dtype=np.int32), (shape[0], 1)),
        trained=np.zeros(shape, np.bool_),
        logprobs=np.zeros(shape, np.float32),
        advantages=np.zeros(shape, np.float32),
        weights=np.zeros(shape, np.float32),
        trees=np.full(shape, NO_TREE, np.int32),
    )
    for r, trees in enumerate(rows):
        start = 0
        for number, tree in enumerate(trees):
            at = (r, slice(start, start + len(tree.token_ids)))
            packed.token_ids[at] = tree.token_ids
            packed.positions[at] = tree.positions
            packed.parents[at] = np.where(tree.parents < 0, NO_PARENT, tree.parents + start)
            packed.exits[at] = tree.exits + start
            packed.trained[at] = tree.trained
            packed.logprobs[at] = tree.logprobs
            packed.advantages[at] = tree.advantages
            packed.weights[at] = tree.weights
            packed.trees[at] = number
            start += len(tree.token_ids)
    return packed
