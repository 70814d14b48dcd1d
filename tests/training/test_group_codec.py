"""Groups survive the way through a file; whatever else is in the file is refused."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import fields
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from checkpoints import report, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlsys.errors import CheckpointError
from rlsys.training.group_codec import StoredGroup, decode_groups, encode_groups
from rlsys.training.old_groups import decode_old_groups
from rlsys.types import GroupReport, Kind, Sample, Segment

DTYPES = st.sampled_from(["bool", "int8", "int32", "int64", "float16", "float32", "float64", ">i4"])
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
NUMBERS = arrays.arrays(DTYPES, SHAPES)
TEXTS = st.text(st.characters(codec=None), max_size=8)  # halves of surrogate pairs included
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
VERSIONS = st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9))


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    kind, length = draw(st.sampled_from(Kind)), draw(st.integers(0, 5))
    floats = arrays.arrays("float32", length)
    return Segment(
        parent=draw(st.integers(-1, 5)),
        cut=draw(st.integers(0, 5)),
        kind=kind,
        token_ids=draw(arrays.arrays("int32", length)),
        logprobs=draw(floats) if kind.sampled else None,
        versions=draw(VERSIONS),
    )


SAMPLES = st.builds(
    Sample,
    segments=st.lists(segments(), max_size=3).map(tuple),
    advantages=st.lists(st.none() | NUMBERS, max_size=3).map(tuple),
    weights=st.lists(st.floats(allow_nan=False), max_size=3).map(tuple),
    rows=st.lists(st.none() | NUMBERS, max_size=3).map(tuple),
)
REPORTS = st.builds(
    GroupReport,
    index=st.integers(0, 2**40),
    problem_id=TEXTS,
    difficulty=st.none() | st.floats(allow_nan=False),
    versions=VERSIONS,
    scores_G=NUMBERS,
    numbers=st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), NUMBERS, max_size=3),
    invalid=st.integers(0, 9),
    answers=st.integers(0, 9),
    sampled_tokens=st.integers(0, 9),
    sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple),
    example=st.dictionaries(TEXTS, JSON, max_size=3),
)
GROUPS = st.lists(
    st.builds(StoredGroup, st.integers(0, 99), REPORTS, st.lists(SAMPLES, max_size=2).map(tuple)),
    max_size=2,
)


def assert_same(first: Any, second: Any) -> None:
    """Equal values of equal types, arrays bit for bit."""
    assert type(first) is type(second)
    if isinstance(first, np.ndarray):
        assert (first.dtype, first.shape) == (second.dtype, second.shape)
        assert first.tobytes() == second.tobytes()
        assert second.flags.writeable and second.flags.aligned
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    elif hasattr(first, "__dataclass_fields__"):
        for name in first.__dataclass_fields__:
            assert_same(getattr(first, name), getattr(second, name))
    else:
        assert first == second


@settings(max_examples=60, deadline=None)
@given(GROUPS)
def test_every_group_comes_back_as_it_was(groups: list[StoredGroup]) -> None:
    assert_same(groups, decode_groups(encode_groups(groups)))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40) | JSON.map(lambda v: repr(v).encode("utf-8", "replace")))
def test_garbage_is_refused(data: bytes) -> None:
    for decode in (decode_groups, decode_old_groups):
        try:
            assert decode(data) == []
        except CheckpointError as error:
            assert "not the finished groups" in str(error)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_changed_byte_is_refused_or_gives_groups(data: st.DataObject) -> None:
    changed = bytearray(encode_groups([StoredGroup(3, report(3), (sample(),))]))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CheckpointError):
        assert all(isinstance(group.report, GroupReport) for group in decode_groups(bytes(changed)))


def test_numbers_of_numpy_are_plain_ones_afterwards() -> None:
    group = StoredGroup(
        1, report(1), (Sample(segments=(), advantages=(), weights=(cast(float, np.float32(2)),)),)
    )
    (read,) = decode_groups(encode_groups([group]))
    assert read.samples[0].weights == (2.0,)


def test_objects_are_not_written() -> None:
    wrong = StoredGroup(1, report(1), (np.array([object()]),))  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="ndarray is no record"):
        encode_groups([wrong])


@pytest.mark.parametrize("dtype", ["|O", "<M8[s]", "<U4", "<f3", "04f4", "f4,f4", "no type"])
def test_arrays_of_objects_are_not_read(dtype: str) -> None:
    header = msgspec.msgpack.encode([dtype, [1]])
    array = msgspec.msgpack.Ext(1, len(header).to_bytes(2, "little") + header + bytes(16))
    with pytest.raises(CheckpointError, match="not the finished groups"):
        decode_groups(msgspec.msgpack.encode([[1, b"[]", {"scores_G": array}, []]]))


class Attack:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('code of the file was run')",)


def test_groups_of_format_1_are_read_and_code_in_them_is_refused() -> None:
    groups = [StoredGroup(4, report(4, "½"), (sample(),))]
    data = pickle.dumps([tuple(group) for group in groups])
    assert_same(groups, decode_old_groups(data))
    attacks = (Attack(), [(1, Attack(), ())], [(1, report(1), (Attack(),))], [(1, print, ())])
    for rows in attacks:
        with pytest.raises(CheckpointError, match="which is no record of rlsys"):
            decode_old_groups(pickle.dumps(rows))
    for nothing in (b"", pickle.dumps(None), pickle.dumps([(1, None, ())])):
        with pytest.raises(CheckpointError, match="not the finished groups"):
            decode_old_groups(nothing)


def test_groups_of_format_1_lack_what_reports_had_not_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = [StoredGroup(4, report(4), (sample(),))]
    names = [field.name for field in fields(GroupReport) if field.name != "signal"]
    with monkeypatch.context() as before:
        before.setattr(GroupReport, "__getstate__", lambda self: [getattr(self, n) for n in names])
        data = pickle.dumps([tuple(group) for group in groups])
    (found,) = decode_old_groups(data)
    assert found.report.signal
    assert_same(groups, [found])
