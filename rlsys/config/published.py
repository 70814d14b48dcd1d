"""Numbers and words of published code that settings and the pure functions both default to.

Source: Deng et al., arXiv 2505.19862, and its released code.
"""

from __future__ import annotations

from typing import Final

BLANK_LINES: Final = r"\n{2,}"
"""Separates the pieces of a thought."""
LEAST_TOKENS: Final = 32
"""From here on the end of a sentence ends a chunk."""
MOST_TOKENS: Final = 128
"""A chunk that would reach this ends before the piece that would do it."""

KEYWORDS: Final = ("wait", "alternatively", "check", "but")
"""Words that count as reflection."""
CLUSTER_GAP: Final = 59
"""Characters between two keywords of one reflection, at most."""
TOKENS_PER_REFLECTION: Final = 225.09
"""The threshold: four fifths of DeepSeek-R1-Distill-Qwen-7B's thoughts reflect more often."""
