"""The token tree of a session: every prompt and every reply of its chat completions.

A prompt shares the longest prefix that any earlier prompt or reply of the session has. Two chats
with the same system message are therefore two branches of one tree, and a chat that goes on after a
reply is one branch. Replies hold the sampled ids and log-probs as the engine returned them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from rlsys.types import NO_PARENT, Completion, Kind, Segment, Tokens


class Place(NamedTuple):
    """A position in the tree: after the first `cut` tokens of a segment."""

    segment: int
    cut: int


ROOT: Final = Place(NO_PARENT, 0)
"""Before the first token."""


class TokenTree:
    """Segments of an episode that is still played."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    @property
    def tokens(self) -> int:
        """Tokens of all segments."""
        return sum(len(segment.token_ids) for segment in self.segments)

    def path(self, place: Place) -> Tokens:
        """Return all ids from the first one to `place`."""
        parts: list[Tokens] = []
        while place.segment != NO_PARENT:
            segment = self.segments[place.segment]
            parts.append(segment.token_ids[: place.cut])
            place = Place(segment.parent, segment.cut)
        return np.concatenate([np.empty(0, np.int32), *reversed(parts)])

    def locate(self, ids: Tokens) -> tuple[Place, Tokens]:
        """Return the place after the longest known prefix of `ids`, and the ids after it."""
        best, length = ROOT, 0
        for leaf in self._leaves():
            known = self.path(leaf)
            shared = _shared_prefix(known, ids)
            if shared > length:
                best, length = self._back(leaf, len(known) - shared), shared
        return best, ids[length:]

    def add_text(self, place: Place, token_ids: Tokens, kind: Kind) -> Place:
        """Add ids that were not sampled after `place`; return the place after them."""
        if not len(token_ids):
            return place
        return self._add(
            Segment(parent=place.segment, cut=place.cut, kind=kind, token_ids=token_ids)
        )

    def add_reply(self, place: Place, completion: Completion) -> Place:
        """Add a reply after `place`, exactly as it was sampled; return the place after it."""
        return self._add(
            Segment.sampled(completion, parent=place.segment, cut=place.cut, kind=Kind.ANSWER)
        )

    def _add(self, segment: Segment) -> Place:
        self.segments.append(segment)
        return Place(len(self.segments) - 1, len(segment.token_ids))

    def _leaves(self) -> Iterator[Place]:
        """The ends of all segments, except where a child follows: its path holds the whole one."""
        continued = {Place(segment.parent, segment.cut) for segment in self.segments}
        for index, segment in enumerate(self.segments):
            end = Place(index, len(segment.token_ids))
            if end not in continued:
                yield end

    def _back(self, place: Place, tokens: int) -> Place:
        """Return the place `tokens` tokens before `place`, on the same path."""
        while tokens > place.cut or (tokens == place.cut and place.segment != NO_PARENT):
            tokens -= place.cut
            segment = self.segments[place.segment]
            place = Place(segment.parent, segment.cut)
        return Place(place.segment, place.cut - tokens)


def _shared_prefix(first: Tokens, second: Tokens) -> int:
    """Return the length of the common prefix of two sequences."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length
