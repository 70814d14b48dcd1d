"""Gold texts: one accepted answer, several, or some with a tolerance, all in one text.

`rlsys.types.Problem.answer` is such a text: accepted answers joined by GOLD_SEPARATOR, any of them
right. A last part `tolerance:0.1` allows numeric answers that absolute error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

from rlsys.grading.answers import clean_gold
from rlsys.grading.policy import Gold
from rlsys.types import GOLD_SEPARATOR

_TOLERANCE = "tolerance:"


def gold_text(answers: str | Sequence[str], tolerance: str | None = None) -> str:
    """Write accepted answers, and perhaps the tolerance of numeric ones, as one gold text.

    Example: gold_text(["3e6", "3000000"]), gold_text("4.2", tolerance="1e-1")
    """
    parts = [answers] if isinstance(answers, str) else list(answers)
    if tolerance is not None:
        parts.append(_TOLERANCE + str(Fraction(tolerance)))
    return GOLD_SEPARATOR.join(parts)


def read_gold(text: str) -> Gold:
    r"""Read a gold text. A JSON list of texts is several answers too; empty ones are left out.

    Example: read_gold("#### 2,125") == Gold(("2,125",))
    """
    answers, tolerance = text.split(GOLD_SEPARATOR), None
    if len(answers) > 1 and answers[-1].startswith(_TOLERANCE):
        tolerance = Fraction(answers.pop().removeprefix(_TOLERANCE))
    elif len(answers) == 1 and text.lstrip().startswith('["'):
        answers = _json_list(text)
    cleaned = (clean_gold(answer) for answer in answers)
    return Gold(tuple(answer for answer in cleaned if answer), tolerance)


def _json_list(text: str) -> list[str]:
    try:
        return [str(answer) for answer in json.loads(text)]
    except ValueError:
        return [text]  # a text that only looks like JSON is one answer
