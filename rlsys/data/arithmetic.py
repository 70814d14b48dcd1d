"""Problems from a seed: one-digit numbers joined by + and -, such as `3+8-2+7-1+4`.

The space of problems is split once and for all: a hash of the text decides whether a problem is
held out. Training streams and supervised traces draw from the one side, evaluation streams from the
other, so no choice of seeds can leak an evaluation problem into training. Within one stream
problems are drawn independently and may repeat: six numbers make 9^6 * 2^5 = 17 million problems,
so 100,000 training problems hold about 400 pairs of equal ones, and 256 evaluation problems hardly
ever one. Two numbers make only 162 problems, and a stream of them repeats itself often.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Final

import numpy as np

from rlsys.config import ArithmeticData
from rlsys.types import Problem

HELD_OUT_ONE_IN: Final = 4
"""One problem in this many belongs to evaluation."""

_BLOCK: Final = 512
"""Problems drawn at once; part of what a seed means."""


def is_held_out(text: str) -> bool:
    """Whether the problem `text` belongs to evaluation: the same in every run, everywhere."""
    return blake2b(text.encode(), digest_size=1).digest()[0] % HELD_OUT_ONE_IN == 0


def arithmetic_problems(config: ArithmeticData) -> list[Problem]:
    """Return `config.size` problems, the same for the same configuration.

    `difficulty` of a problem is how many numbers it joins, uniform between the configured bounds.
    The answer may be negative.
    """
    texts = draw_texts(
        np.random.default_rng(config.seed), config.difficulty, config.held_out, config.size
    )
    return [
        arithmetic_problem(text, f"arithmetic-{config.seed}-{i}") for i, text in enumerate(texts)
    ]


def arithmetic_problem(text: str, problem_id: str) -> Problem:
    """The problem that `text` poses, with its answer worked out."""
    terms = signed_terms(text)
    return Problem(id=problem_id, text=text, answer=str(sum(terms)), difficulty=float(len(terms)))


def signed_terms(text: str) -> list[int]:
    """The signed numbers of a problem: `3+8-2` is [3, 8, -2]."""
    terms = [int(text[0])]
    terms += [int(text[i : i + 2]) for i in range(1, len(text), 2)]
    return terms


def draw_texts(
    rng: np.random.Generator, difficulty: tuple[int, int], held_out: bool, size: int
) -> list[str]:
    """Draw `size` problem texts from one side of the split, with replacement.

    Numbers are uniform over 1..9 (a zero would be a step without work), signs are fair coins. A
    longer stream begins like a shorter one.
    """
    drawn = (text for text in _stream(rng, difficulty) if is_held_out(text) == held_out)
    return list(islice(drawn, size))


def _stream(rng: np.random.Generator, difficulty: tuple[int, int]) -> Iterator[str]:
    low, high = difficulty
    while True:
        counts_B = rng.integers(low, high + 1, _BLOCK)
        chars_BC = np.empty((_BLOCK, 2 * high - 1), np.uint8)
        chars_BC[:, 0::2] = rng.integers(ord("1"), ord("9") + 1, (_BLOCK, high))
        chars_BC[:, 1::2] = np.where(rng.random((_BLOCK, high - 1)) < 0.5, ord("+"), ord("-"))
        for chars_C, count in zip(chars_BC, counts_B, strict=True):
            yield chars_C[: 2 * count - 1].tobytes().decode()
