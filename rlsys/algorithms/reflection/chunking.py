"""Split a thought into numbered chunks: boundaries are found in the text, cuts count token ids.

The text is split into pieces at blank lines, and neighbouring pieces are joined into chunks of 32
to 128 tokens. A cut is a number of sampled tokens. Tokenising the joined text of the chunks again
could give other tokens than the policy sampled, and their stored log-probs would then be wrong.

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
    """The smallest unit of a thought that a cut can keep or drop: the text between separators."""

    start: int
    """Index of the first character; white space around a piece is not part of it."""
    end: int
    """Index after the last character."""
    tokens: int
    """Number of tokens that contain a character of the piece."""
    token_end: int
    """Number of tokens of the thought up to the last character of the piece, inclusive."""


@dataclass(frozen=True, slots=True)
class ChunkedThought:
    """A thought, its pieces, and the pieces of each chunk."""

    text: str
    pieces: tuple[Piece, ...]
    chunks: tuple[tuple[int, ...], ...]
    """Piece indices of every chunk. Every piece is in one chunk, in order; no chunk is empty."""

    @property
    def texts(self) -> list[str]:
        """The text of every chunk [N], with the blank lines inside it as sampled."""
        return [
            self.text[self.pieces[chunk[0]].start : self.pieces[chunk[-1]].end]
            for chunk in self.chunks
        ]

    @property
    def token_counts(self) -> list[int]:
        """Tokens of every chunk [N], without the separators between its pieces."""
        return [sum(self.pieces[i].tokens for i in chunk) for chunk in self.chunks]

    def chunk_of(self, end: int) -> int:
        """Return the chunk, counted from 0, that contains what ends before character `end`."""
        return next(i for i, c in enumerate(self.chunks) if end <= self.pieces[c[-1]].end)

    def kept_tokens(self, cut: int) -> int:
        """Return how many tokens of the thought remain if it is cut after chunk `cut`.

        A cut after the last chunk drops the last piece of the thought. If the thought has only one
        piece, 0 tokens remain.
        """
        last = self.chunks[cut][-1]
        # A revision that keeps the whole thought would be the original again. Its pair would have
        # nothing to compare, so at least one piece is dropped.
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
    """Return the chunks of a thought.

    Args:
        token_texts: [L] the text that each token adds; joined they are the whole text. A token that
            only begins a character adds "", and the token that completes the character adds it
            (`rlsys.tokenization.decoding.token_texts`). End-of-thought tokens are left out.
        separator: regular expression of the text between pieces. A zero-width match such as
            `(?=;)` splits the text without removing a character.
        least: see `chunks`.
        most: see `chunks`; 1 makes every piece a chunk.

    If a token contains the end of one piece and the start of the next, it is kept with the first.
    """
    text = "".join(token_texts)
    ends_L = np.fromiter(accumulate(map(len, token_texts)), dtype=np.int64)
    starts_L = np.concatenate([[0], ends_L[:-1]])
    pieces = []
    for start, end in split_pieces(text, separator):
        # The first token of the piece is the first one that ends after `start`. A token without
        # text right before it belongs to the piece too: it begins the first character. The second
        # search finds that token.
        first = min(np.searchsorted(ends_L, start, "right"), np.searchsorted(starts_L, start))
        # All tokens that start before `end`, also one in which the next piece starts.
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
    """Return (start, end) character indices [P] of the pieces between separators.

    White space around a piece is left out, and so are pieces of white space only.
    """
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
    """Return the piece indices of every chunk, one list per chunk.

    A piece that ends a sentence closes its chunk if the chunk then has `least` tokens or more. Any
    other piece that would bring the chunk to `most` tokens starts the next chunk; if the chunk has
    no other piece, it forms a chunk alone. So chunks have `least` to `most` tokens, with two
    exceptions: the last chunk may have fewer, and a chunk with a long piece may have more.

    Args:
        token_counts: [P] tokens of each piece.
        last_characters: [P] the last character of each piece.
        least: tokens of a chunk from which the end of a sentence closes it.
        most: a chunk has fewer tokens than this, unless one of its pieces is longer.

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
    """Return the chunk indices of every window: consecutive chunks for one call of the teacher.

    A window has at most `most` tokens; a longer chunk forms a window alone.

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
