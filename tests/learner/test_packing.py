"""The tree layout against the published one (literal arrays) and against a slow per-path loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.packing import NO_TREE, PackedTree, assign_rows, flatten, pack_rows
from rlsys.types import NO_PARENT, Kind, Sample, Segment


def segment(parent: int, cut: int, kind: Kind, token_ids: list[int]) -> Segment:
    return Segment(
        parent=parent,
        cut=cut,
        kind=kind,
        token_ids=np.array(token_ids, np.int32),
        logprobs=np.full(len(token_ids), -0.5, np.float32) if kind.sampled else None,
        versions=(0, 0) if kind.sampled else None,
    )


def sample(*segments: Segment) -> Sample:
    """Every sampled token trains; its advantage is its token id."""
    advantages = tuple(s.token_ids.astype(np.float32) if s.kind.sampled else None for s in segments)
    return Sample(segments=segments, advantages=advantages)


def visible(exits_T: np.ndarray) -> np.ndarray:
    """[T, T] query by key."""
    index_T = np.arange(len(exits_T))
    return (index_T <= index_T[:, None]) & (index_T[:, None] < exits_T)


def paths(segments: tuple[Segment, ...]) -> list[list[list[tuple[int, int]]]]:
    """[segment][token] -> (segment, token) pairs from the root to the token, itself included."""
    result: list[list[list[tuple[int, int]]]] = []
    stems: list[list[tuple[int, int]]] = []
    for s, seg in enumerate(segments):
        stem: list[tuple[int, int]] = []
        if seg.parent != NO_PARENT:
            stem = result[seg.parent][seg.cut - 1] if seg.cut else stems[seg.parent]
        stems.append(stem)
        own = [(s, j) for j in range(len(seg.token_ids))]
        result.append([stem + own[: j + 1] for j in range(len(own))])
    return result


@st.composite
def trees(draw: st.DrawFn) -> Sample:
    segments: list[Segment] = []
    count = 0
    for s in range(draw(st.integers(1, 9))):
        parent = draw(st.integers(0, s - 1)) if s else NO_PARENT
        cut = draw(st.integers(0, len(segments[parent].token_ids))) if s else 0
        length = draw(st.integers(0, 5))
        kind = draw(st.sampled_from(Kind)) if s else Kind.PROMPT
        segments.append(segment(parent, cut, kind, list(range(count, count + length))))
        count += length
    return sample(*segments)


def published_episode() -> Sample:
    """Prompt of 3, thought of 5 that closed itself, budgets 2 4 6 8, one answer each (TV3)."""
    return sample(
        segment(NO_PARENT, 0, Kind.PROMPT, [0, 1, 2]),
        segment(0, 3, Kind.THOUGHT, [3, 4, 5, 6, 7]),
        segment(1, 2, Kind.FORCED, [8, 9, 10]),
        segment(2, 3, Kind.ANSWER, [11, 12]),
        segment(1, 4, Kind.FORCED, [13, 14, 15]),
        segment(4, 3, Kind.ANSWER, [16]),
        segment(1, 5, Kind.FORCED, [17, 18]),
        segment(6, 2, Kind.ANSWER, [19, 20]),
        segment(1, 5, Kind.FORCED, [21, 22]),
        segment(8, 2, Kind.ANSWER, [23]),
    )


def test_published_packing() -> None:
    """Token ids number the published order (thought first, then the branches), so they map it.

    It describes visibility by two offsets: q sees every key up to itself but [q - start, q - end).
    """
    tree = flatten(published_episode())
    place = np.argsort(tree.token_ids)
    seen = visible(tree.exits)[np.ix_(place, place)]
    start, end = np.zeros(24, int), np.zeros(24, int)
    for q in range(24):
        hidden = np.flatnonzero(~seen[q, : q + 1])
        if len(hidden):
            assert np.array_equal(hidden, np.arange(hidden[0], hidden[-1] + 1))
            start[q], end[q] = q - hidden[0], q - hidden[-1] - 1

    positions = [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 4, 5, 6, 7, 5, 6, 7, 8, 5, 6, 7]
    assert (tree.positions[place] - 3).tolist() == [-3, -2, -1, *positions]
    starts = [0, 0, 0, 0, 0, 3, 4, 5, 6, 7, 6, 7, 8, 9, 9, 10, 11, 12, 13, 14, 15]
    assert start.tolist() == [0, 0, 0, *starts]
    ends = [0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
    assert end.tolist() == [0, 0, 0, *ends]

    keys = {q: set(np.flatnonzero(seen[q + 3]).tolist()) for q in (9, 13, 17, 20)}
    assert keys[9] == {*range(0, 5), *range(8, 13)}
    assert keys[13] == {*range(0, 7), *range(13, 17)}
    assert keys[17] == {*range(0, 8), *range(17, 21)}
    assert keys[20] == {*range(0, 8), *range(21, 24)}

    # p prompt, z thought, i forced, y answer, in the published order
    kinds = "ppp" + "zzzzz" + "iiiyy" + "iiiy" + "iiyy" + "iiy"
    assert tree.trained[place].tolist() == [kind in "zy" for kind in kinds]


def test_layout_of_a_small_tree() -> None:
    """Thought `10 11 12` after an empty prompt, answer `20` after its first token."""
    tree = flatten(
        sample(
            segment(NO_PARENT, 0, Kind.PROMPT, []),
            segment(0, 0, Kind.THOUGHT, [10, 11, 12]),
            segment(1, 1, Kind.FORCED, []),
            segment(2, 0, Kind.ANSWER, [20]),
        )
    )
    assert tree.token_ids.tolist() == [10, 11, 12, 20]
    assert tree.positions.tolist() == [0, 1, 2, 1]
    assert tree.parents.tolist() == [-1, 0, 1, 0]
    assert tree.exits.tolist() == [4, 3, 3, 4]
    assert tree.advantages.tolist() == [10, 11, 12, 20]
    assert tree.weights.tolist() == [1, 1, 1, 1]


def test_branches_at_several_cuts() -> None:
    """The example of PackedTree: the later cut first, so that every subtree is one range."""
    tree = flatten(
        sample(
            segment(NO_PARENT, 0, Kind.THOUGHT, [10, 11, 12]),
            segment(0, 1, Kind.ANSWER, [20]),
            segment(0, 2, Kind.ANSWER, [21]),
        )
    )
    assert tree.token_ids.tolist() == [10, 11, 12, 21, 20]
    assert tree.positions.tolist() == [0, 1, 2, 2, 1]
    assert tree.parents.tolist() == [-1, 0, 1, 1, 0]
    assert tree.exits.tolist() == [5, 4, 3, 4, 5]


def test_the_trunk_ends_at_the_first_branch_of_any_row() -> None:
    def chain(*token_ids: int) -> PackedTree:
        return flatten(sample(segment(NO_PARENT, 0, Kind.PROMPT, list(token_ids))))

    tree = flatten(
        sample(
            segment(NO_PARENT, 0, Kind.PROMPT, [1, 2, 3]),
            segment(0, 3, Kind.ANSWER, [4]),
            segment(0, 2, Kind.ANSWER, [5]),
        )
    )
    assert pack_rows([[tree]], 8).trunk == 4
    assert pack_rows([[tree], [chain(1, 2)]], 8).trunk == 2
    assert pack_rows([[tree], []], 8).trunk == 1  # padding sees itself
    assert pack_rows([[chain(1, 2), tree]], 8).trunk == 2


def test_weights_reach_trained_tokens_only() -> None:
    episode = published_episode()
    weights = tuple(0.25 if s.kind is Kind.ANSWER else 1.0 for s in episode.segments)
    tree = flatten(
        Sample(segments=episode.segments, advantages=episode.advantages, weights=weights)
    )
    place = np.argsort(tree.token_ids)
    kinds = "ppp" + "zzzzz" + "iiiyy" + "iiiy" + "iiyy" + "iiy"
    expected = {"z": 1.0, "y": 0.25}
    assert tree.weights[place].tolist() == [expected.get(kind, 0.0) for kind in kinds]


def test_tokens_that_stand_for_two_rows_count_and_weigh_twice() -> None:
    """A thought of which a revision kept two tokens; the weight of its answer is 0.5."""
    tree = Sample(
        segments=(
            segment(NO_PARENT, 0, Kind.PROMPT, [0]),
            segment(0, 1, Kind.THOUGHT, [1, 2, 3]),
            segment(1, 2, Kind.FORCED, [4]),
            segment(2, 1, Kind.ANSWER, [5]),
        ),
        advantages=(None, np.ones(3, np.float32), None, np.ones(1, np.float32)),
        weights=(1.0, 1.0, 1.0, 0.5),
        rows=(None, np.array([2, 2, 1], np.int32), None, None),
    )
    flat = flatten(tree)
    assert flat.token_ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert flat.weights.tolist() == [0, 2, 2, 1, 0, 0.5]
    assert tree.num_trained == 6
    assert flat.trained.sum() == 4


@settings(max_examples=200, deadline=None)
@given(trees())
def test_flatten_equals_every_path(tree: Sample) -> None:
    flat = flatten(tree)
    place = {int(token): i for i, token in enumerate(flat.token_ids)}
    seen = visible(flat.exits)
    assert len(place) == len(flat.token_ids) == tree.num_tokens
    for seg, seg_paths in zip(tree.segments, paths(tree.segments), strict=True):
        for token, path in zip(seg.token_ids.tolist(), seg_paths, strict=True):
            i = place[token]
            on_path = [place[int(tree.segments[s].token_ids[j])] for s, j in path]
            assert on_path == sorted(on_path)
            assert np.flatnonzero(seen[i]).tolist() == on_path
            assert flat.positions[i] == len(path) - 1
            assert flat.parents[i] == (on_path[-2] if len(path) > 1 else -1)
            assert flat.trained[i] == seg.kind.sampled
            assert flat.weights[i] == float(seg.kind.sampled)
            assert flat.logprobs[i] == (-0.5 if seg.kind.sampled else 0.0)
            assert flat.advantages[i] == (token if seg.kind.sampled else 0.0)


def test_flatten_refuses_what_no_environment_may_build() -> None:
    prompt = segment(NO_PARENT, 0, Kind.PROMPT, [0, 1])
    with pytest.raises(ValueError, match="cuts after 3 of its parent's 2 tokens"):
        flatten(sample(prompt, segment(0, 3, Kind.ANSWER, [2])))
    forced = segment(0, 2, Kind.FORCED, [2])
    with pytest.raises(ValueError, match="FORCED, which is never trained"):
        flatten(Sample(segments=(prompt, forced), advantages=(None, np.ones(1, np.float32))))


def test_full_rows_stay_as_first_fit_found_them() -> None:
    """Worked by hand: 6 5 4 3 into two rows of 9 is 6 3, 5 4 both ways."""
    assert assign_rows([3, 6, 5, 4], row_tokens=9, ranks=1) == [[[1, 0], [2, 3]]]
    # Evened out this would be 4 3 2 and 4 3, of which the first exceeds the row.
    assert assign_rows([4, 4, 3, 3, 2], row_tokens=8, ranks=1) == [[[0, 1], [2, 3, 4]]]


def test_rows_with_room_are_evened_out_over_ranks() -> None:
    """Worked by hand: 16 tokens need two rows of 12, four trees spread as 7 1 and 5 3."""
    assert assign_rows([7, 5, 3, 1], row_tokens=12, ranks=2) == [[[0, 3]], [[1, 2]]]
    assert assign_rows([7, 5], row_tokens=12, ranks=3) == [[[0]], [[1]], [[]]]


def test_ranks_get_rows_with_about_as_much_attention_at_the_same_time() -> None:
    """Worked by hand: rows of 9, 8, 5 + 4 and 4 + 4 tokens have squares of 81, 64, 41 and 32."""
    dealt = assign_rows([9, 5, 4, 8, 4, 4], row_tokens=9, ranks=2)
    # By tokens alone, 5 + 4 would run beside the 9, and 4 + 4 beside the 8.
    assert dealt == [[[0], [2, 4]], [[3], [1, 5]]]


@given(
    st.lists(st.integers(0, 50), max_size=60),
    st.integers(50, 80),
    st.integers(1, 5),
)
def test_rows_lose_nothing(num_tokens: list[int], row_tokens: int, ranks: int) -> None:
    dealt = assign_rows(num_tokens, row_tokens=row_tokens, ranks=ranks)
    rows = [row for rank in dealt for row in rank]
    assert len(dealt) == ranks and len({len(rank) for rank in dealt}) == 1
    assert sorted(i for row in rows for i in row) == list(range(len(num_tokens)))
    loads = [sum(num_tokens[i] for i in row) for row in rows]
    assert max(loads, default=0) <= row_tokens
    # First fit leaves at most one row half empty, so it needs at most this many.
    enough = 2 * sum(num_tokens) // row_tokens + 1
    assert len(dealt[0]) <= -(-enough // ranks)
    # The k-th rows of any two ranks differ by at most one step of the descending order.
    for k in range(len(dealt[0]) - 1):
        lightest = min(sum(num_tokens[i] ** 2 for i in rank[k]) for rank in dealt)
        assert lightest >= max(sum(num_tokens[i] ** 2 for i in rank[k + 1]) for rank in dealt)


def test_a_tree_longer_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="a tree of 11 tokens exceeds a row of 10"):
        assign_rows([3, 11], row_tokens=10, ranks=1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(trees(), max_size=3), min_size=1, max_size=3))
def test_packed_rows_keep_every_tree(samples: list[list[Sample]]) -> None:
    rows: list[list[PackedTree]] = [[flatten(s) for s in row] for row in samples]
    longest = max(sum(len(t.token_ids) for t in row) for row in rows)
    packed = pack_rows(rows, longest + 1, multiple_of=8)
    assert packed.token_ids.shape == (len(rows), (longest + 8) // 8 * 8)
    for r, row in enumerate(rows):
        seen = visible(packed.exits[r])
        start = 0
        for number, tree in enumerate(row):
            stop = start + len(tree.token_ids)
            assert np.array_equal(seen[start:stop, start:stop], visible(tree.exits))
            assert not seen[start:stop, :start].any()
            shifted = np.where(tree.parents < 0, -1, tree.parents + start)
            assert np.array_equal(packed.parents[r, start:stop], shifted)
            assert (packed.trees[r, start:stop] == number).all()
            for name in ("token_ids", "positions", "trained", "logprobs", "advantages", "weights"):
                assert np.array_equal(getattr(packed, name)[r, start:stop], getattr(tree, name))
            start = stop
        assert (packed.trees[r, start:] == NO_TREE).all()
        assert not packed.trained[r, start:].any()
        assert np.array_equal(seen[start:], np.eye(seen.shape[0], dtype=bool)[start:])
    assert packed.num_tokens == sum(s.num_tokens for row in samples for s in row)
    assert packed.num_pairs == sum(visible(tree.exits).sum() for row in rows for tree in row)
    assert packed.trained.sum() == sum(s.num_trained for row in samples for s in row)


def test_one_row_holds_all_trees_if_it_may() -> None:
    assert assign_rows([3, 9, 4], row_tokens=16, ranks=1) == [[[1, 2, 0]]]
