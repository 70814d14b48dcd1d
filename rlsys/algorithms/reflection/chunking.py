"""A thought in numbered chunks, found in its text and cut on its token ids.

Text splits into pieces at blank lines, and neighbouring pieces join into chunks of 32 to 128
tokens. A cut is always a number of the thought's own tokens. Text put together from chunks and
tokenised again could be other tokens than the policy sampled, and their log-probs other numbers.

Shapes: L tokens of a thought, P pieces, N chunks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from rlsys.config.published import BLANK_LINES, LEAST_TOKENS, MOST_TOKENS

SENTENCE_ENDS: Final = frozenset("!.;?")
WINDOW_TOKENS: Final = 1024


class Piece(NamedTuple):
    """The smallest unit a thought is cut in: the text between two separators."""

    start: int
    """Its first character; white space around a piece is not part of it."""
    end: int
    """The character after its last one."""
    tokens: int
    """Tokens that hold any of its characters."""
    token_end: int
    """Tokens of the thought up to and including the one with its last character."""


@dataclass(frozen=True, slots=True)
class ChunkedThought:
    """A thought, its pieces, and which of them make up each chunk."""

    text: str
    pieces: tuple[Piece, ...]
    chunks: tuple[tuple[int, ...], ...]
    """Piece numbers of every chunk: all of them, in order, none empty."""

    @property
    def texts(self) -> list[str]:
        """The text of every chunk [N], the blank lines inside it as they were sampled."""
        return [
            self.text[self.pieces[chunk[0]].start : self.pieces[chunk[-1]].end]
            for chunk in self.chunks
        ]

    @property
    def token_counts(self) -> list[int]:
        """Tokens of every chunk [N], separators between its pieces not counted."""
        return [sum(self.pieces[i].tokens for i in chunk) for chunk in self.chunks]

    def kept_tokens(self, cut: int) -> int:
        """Return how many tokens of the thought remain when it is cut after chunk `cut`.

        A revision has to drop something: a cut after the last chunk drops the last piece, and the
        only piece of a thought leaves nothing.
        """
        last = self.chunks[cut][-1]
        if last == len(self.pieces) - 1:
            last -= 1
        return self.pieces[last].token_end if last >= 0 else 0


def chunk_thought(
    token_texts: Sequence[str],
    *,
    separator: str = BLANK_LINES,
    least: int = LEAST_TOKENS,
    most: int = MOST_TOKENS,
) -> ChunkedThought:
    """Return the chunks of a thought that its own tokens spell.

    Args:
        token_texts: [L] what each token adds to the text, so that joining them gives the text. A
            token that only begins a character adds "" and the one that completes it the character
            (`rlsys.tokenization.decoding.token_texts`). End-of-thought tokens are left out.
        separator: regular expression between pieces. One that matches nothing but a place, such as
            `(?=;)`, splits there without taking a character away.
        least: see `chunks`.
        most: see `chunks`; 1 makes every piece a chunk.

    A token that holds the end of one piece and the start of the next is kept with the first.
    """
    text = "".join(token_texts)
    ends_L = np.fromiter(accumulate(map(len, token_texts)), dtype=np.int64)
    starts_L = np.concatenate([[0], ends_L[:-1]])
    pieces = []
    for start, end in split_pieces(text, separator):
        # Both conditions: a token without text that stands right before the piece begins it.
        first = min(np.searchsorted(ends_L, start, "right"), np.searchsorted(starts_L, start))
        token_end = int(np.searchsorted(starts_L, end))
        pieces.append(Piece(start, end, token_end - int(first), token_end))
    chunked = chunks(
        [piece.tokens for piece in pieces],
        [text[piece.end - 1] for piece in pieces],
        least=least,
        most=most,
    )
    return ChunkedThought(text, tuple(pieces), tuple(map(tuple, chunked)))


def split_pieces(text: str, separator: str = BLANK_LINES) -> list[tuple[int, int]]:
    """Return (start, end) characters [P] of the text between separators, blank pieces left out."""
    spans = [match.span() for match in re.finditer(separator, text)]
    pieces, start = [], 0
    for gap_start, gap_end in [*spans, (len(text), len(text))]:
        piece = text[start:gap_start]
        if content := piece.strip():
            first = start + piece.index(content)
            pieces.append((first, first + len(content)))
        start = gap_end
    return pieces


def chunks(
    token_counts: Sequence[int],
    last_characters: Sequence[str],
    *,
    least: int = LEAST_TOKENS,
    most: int = MOST_TOKENS,
) -> list[list[int]]:
    """Return the piece numbers of every chunk, one list per chunk.

    A piece that ends a sentence ends its chunk as soon as the chunk has `least` tokens. Any other
    piece that would bring a chunk to `most` tokens starts the next one, or is a chunk of its own if
    no piece waits. So a chunk has `least` to `most` tokens, except the last one, which may have
    fewer, and those with a long piece, which may have more.

    Args:
        token_counts: [P] tokens of each piece.
        last_characters: [P] the last character of each piece.
        least: tokens from which the end of a sentence ends a chunk.
        most: tokens that a chunk stays below where it can.

    Example: chunks([10, 25, 40], [".", ".", "."]) == [[0, 1], [2]]
    """
    closed: list[list[int]] = []
    waiting: list[int] = []
    tokens = 0
    for piece, (count, last) in enumerate(zip(token_counts, last_characters, strict=True)):
        tokens += count
        if tokens >= least and last in SENTENCE_ENDS:
            closed.append([*waiting, piece])
            waiting, tokens = [], 0
        elif tokens < most:
            waiting.append(piece)
        elif waiting:
            closed.append(waiting)
            waiting, tokens = [piece], count
        else:
            closed.append([piece])
            tokens = 0
    return [*closed, waiting] if waiting else closed


def windows(token_counts: Sequence[int], most: int = WINDOW_TOKENS) -> list[list[int]]:
    """Return the chunk numbers of every window: consecutive chunks that one teacher call reads.

    A window has at most `most` tokens; a longer chunk is a window of its own.

    Args:
        token_counts: [N] tokens of each chunk.
        most: tokens of a window.
    """
    packed: list[list[int]] = []
    tokens = 0
    for chunk, count in enumerate(token_counts):
        tokens += count
        if packed and tokens <= most:
            packed[-1].append(chunk)
        else:
            packed.append([chunk])
            tokens = count
    return packed
