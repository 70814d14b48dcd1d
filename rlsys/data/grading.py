"""Stable names of the grader for code outside this package; the grader is rlsys.grading."""

from __future__ import annotations

from rlsys.grading.answers import extract_answer
from rlsys.grading.compare import is_correct

__all__ = ["extract_answer", "is_correct"]
