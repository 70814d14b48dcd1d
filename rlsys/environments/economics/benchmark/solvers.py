"""Solvers: they write an answer of at most a given number of tokens, without a model."""

from __future__ import annotations

import re
from typing import Protocol

from rlsys.data.arithmetic import signed_terms
from rlsys.environments.economics.counting import TokenCounter


class Solver(Protocol):
    """Answers a question within a number of tokens."""

    def __call__(self, question: str, tokens: int) -> str:
        """Return an answer of at most `tokens` tokens."""
        ...


class Filler:
    """Never knows the answer: writes filler words up to the limit, and a boxed 0."""

    def __init__(self, counter: TokenCounter) -> None:
        """Measure answers with `counter`."""
        self._counter = counter

    def __call__(self, question: str, tokens: int) -> str:
        """Return the longest text of whole words and a box that has at most `tokens` tokens."""
        box = "\\boxed{0}"
        filler = self._counter.prefix("step " * tokens, tokens - self._counter.count(box))
        text = filler + box
        # Joined texts may have more tokens than the sum of their counts.
        return text if self._counter.count(text) <= tokens else box


class ColumnAdder:
    """Computes sums of generated arithmetic step by step. Its answer is cut at the limit.

    It replaces a model in tests and in the benchmark: longer sums need more tokens.
    """

    def __init__(self, counter: TokenCounter) -> None:
        """Measure answers with `counter`."""
        self._counter = counter

    def __call__(self, question: str, tokens: int) -> str:
        """Return for instance `3 +8 = 11 -2 = 9 \\boxed{9}`, cut after `tokens` tokens."""
        return self._counter.prefix(self._worked(question), tokens)

    def needed(self, question: str) -> int:
        """Return the number of tokens of the complete answer."""
        return self._counter.count(self._worked(question))

    @staticmethod
    def can_solve(question: str) -> bool:
        """Return True if the question is a sum of one-digit numbers."""
        return re.fullmatch(r"\d([+-]\d)*", question) is not None

    @staticmethod
    def _worked(question: str) -> str:
        first, *rest = signed_terms(question)
        steps, total = [str(first)], first
        for term in rest:
            total += term
            steps.append(f"{term:+d} = {total}")
        return f"{' '.join(steps)} \\boxed{{{total}}}"
