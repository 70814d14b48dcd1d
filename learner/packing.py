"""From samples to rows: the layout of a token tree, rows of many trees, rows dealt to ranks.

A tree is laid out in depth-first preorder, token by token: a segment that keeps `cut` tokens of its
parent is written, with everything below it, between the parent's tokens `cut - 1` and `cut`. Every
subtree is then one contiguous range, so two integers per token describe a tree of any depth:

    parents[i]   place of the token before i on its path: its hidden state predicts token i
    exits[i]     end (exclusive) of the range that holds i and everything below it

Query q sees key k if and only if k <= q < exits[k]. The rule holds when trees are put side by side
and both numbers are shifted, so rows of many trees need no document ids.

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
"""PackedRows.trees of padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTree:
    """One sample flattened: arrays of shape [T], tokens in depth-first order.

    Example: thought `a b c` with answer `x` after `a` is laid out `a x b c`:
    positions 0 1 1 2, parents -1 0 0 2, exits 4 2 4 4.
    """

    token_ids: Tokens
    positions: Tokens
    """Depth in the tree, which is the index in the root-to-leaf sequence."""
    parents: Tokens
    """Place of the predecessor; -1 for a root token, whose log-prob is undefined."""
    exits: Tokens
    """Place just past the token's subtree."""
    trained: NDArray[np.bool_]
    """True where the token has an advantage."""
    logprobs: Floats
    """Sampling log-probs; 0 where nothing was sampled."""
    advantages: Floats
    """0 where not trained."""
    weights: Floats
    """The segment's factor on the loss times the rows the token stands for; 0 where not trained."""
    kinds: NDArray[np.int8]
    """rlsys.types.Kind of the token's segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Rows of whole trees: arrays of shape [R, T] with the fields of PackedTree.

    Padding comes last in a row: id 0, position 0, no parent, sees only itself, kind -1.
    """

    token_ids: Tokens
    positions: Tokens
    parents: Tokens
    exits: Tokens
    trained: NDArray[np.bool_]
    logprobs: Floats
    advantages: Floats
    weights: Floats
    kinds: NDArray[np.int8]
    trees: Tokens
    """Number of the token's tree within its row; NO_TREE for padding."""

    @property
    def num_tokens(self) -> int:
        """Tokens of trees, padding left out."""
        return int(np.count_nonzero(self.trees != NO_TREE))

    @property
    def num_trained(self) -> int:
        """Tokens with an advantage."""
        return int(np.count_nonzero(self.trained))

    @property
    def padding_share(self) -> float:
        """Share of the R * T slots that hold no token, in [0, 1]."""
        return 1.0 - self.num_tokens / self.token_ids.size


def flatten(sample: Sample) -> PackedTree:
    """Lay a sample's tree out in depth-first order.

    A segment with cut 0 hangs off whatever precedes its parent's first token. Segments without
    tokens hand their own predecessor on to what hangs off them.

    Raises:
        ValueError: a cut exceeds its parent's length, or an unsampled segment has advantages.
    """
    segments = sample.segments
    places, firsts, depths, ends = _layout(segments)
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
        kinds=np.empty(shape, np.int8),
    )
    for s, (segment, advantages) in enumerate(zip(segments, sample.advantages, strict=True)):
        at = places[s]
        tree.token_ids[at] = segment.token_ids
        tree.positions[at] = np.arange(depths[s], depths[s] + len(at))
        tree.parents[at[:1]] = firsts[s]
        tree.parents[at[1:]] = at[:-1]
        tree.exits[at] = ends[s]
        tree.kinds[at] = segment.kind
        if segment.logprobs is not None:
            tree.logprobs[at] = segment.logprobs
        if advantages is not None:
            if not segment.kind.sampled:
                raise ValueError(f"segment {s} is {segment.kind.name}, which is never trained")
            tree.trained[at] = True
            tree.advantages[at] = advantages
            tree.weights[at] = sample.weights[s] if sample.weights else 1.0
            if sample.rows and (rows := sample.rows[s]) is not None:
                tree.weights[at] *= rows
    return tree


def _layout(
    segments: Sequence[Segment],
) -> tuple[list[NDArray[np.int64]], list[int], list[int], list[int]]:
    """Per segment: places of its tokens, place before its first token, its depth, end of its range.

    Sizes come bottom-up (children have larger indices), starts top-down. All tokens of a segment
    exit together: what hangs off token j is written after it but inside the segment's own range.
    """
    lengths = [len(segment.token_ids) for segment in segments]
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
    places: list[NDArray[np.int64]] = []
    start = 0
    for root in reversed(children[NO_PARENT]):
        starts[root] = start
        start += sizes[root]
    for s, length in enumerate(lengths):
        below = sorted(children[s], key=lambda child: (segments[child].cut, child))
        inserted = np.zeros(length + 1, np.int64)  # tokens written between cut - 1 and cut
        before = 0
        for child in below:
            cut = segments[child].cut
            starts[child] = starts[s] + cut + before
            depths[child] = depths[s] + cut
            inserted[cut] += sizes[child]
            before += sizes[child]
        places.append(starts[s] + np.arange(length) + np.cumsum(inserted)[:length])
        for child in below:
            cut = segments[child].cut
            firsts[child] = int(places[s][cut - 1]) if cut else firsts[s]
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    return places, firsts, depths, ends


def assign_rows(num_tokens: Sequence[int], *, row_tokens: int, ranks: int) -> list[list[list[int]]]:
    """Put trees into rows and deal the rows to ranks: rank -> rows -> indices of `num_tokens`.

    First-fit decreasing finds how few rows will do; the trees are then spread over that many (a
    multiple of `ranks`) so that all cost about the same. Rows are dealt longest first in serpentine
    order: the k-th rows of all ranks cost about the same and so does every micro-batch. Each rank
    gets the same number of rows; the last ones may be empty. Deterministic.

    Raises:
        ValueError: a tree is longer than `row_tokens`; the caller grows the row.
    """
    longest = max(num_tokens, default=0)
    if longest > row_tokens:
        raise ValueError(f"a tree of {longest} tokens exceeds a row of {row_tokens}")
    order = sorted(range(len(num_tokens)), key=lambda i: -num_tokens[i])
    dense = _first_fit(order, num_tokens, row_tokens)
    dense.extend([] for _ in range(-len(dense) % ranks))
    even = _spread(order, num_tokens, len(dense))

    def load(row: list[int]) -> int:
        return sum(num_tokens[i] for i in row)

    rows = even if max(map(load, even), default=0) <= row_tokens else dense
    rows = sorted(rows, key=load, reverse=True)
    dealt: list[list[list[int]]] = [[] for _ in range(ranks)]
    for place, row in enumerate(rows):
        turn, seat = divmod(place, ranks)
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
        exits=np.tile(np.arange(1, shape[1] + 1, dtype=np.int32), (shape[0], 1)),
        trained=np.zeros(shape, np.bool_),
        logprobs=np.zeros(shape, np.float32),
        advantages=np.zeros(shape, np.float32),
        weights=np.zeros(shape, np.float32),
        kinds=np.full(shape, -1, np.int8),
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
            packed.kinds[at] = tree.kinds
            packed.trees[at] = number
            start += len(tree.token_ids)
    return packed
