"""Answers in words: choices, short phrases and their synonyms, lead-ins that carry no value.

Texts are in normal form (rlsys.grading.spelling).
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LEAD_IN = re.compile(
    r"(?:(?:so|thus|hence|therefore),? ?)?(?:the |my )?(?:final |correct )?"
    r"(?:answer|result|solution|value|option|choice)(?: is| equals)?(?: ?: ?| |$)"
    r"|(?:so|thus|hence|therefore),? "
    r"|(?:答案|结果)(?:是|为)?:?",
    re.IGNORECASE,
)


def without_lead_in(text: str) -> str:
    """Return the text without words that only announce a value: `The answer is 73` is 73."""
    match = _LEAD_IN.match(text)
    rest = text[match.end() :].strip() if match else ""
    return rest or text


_CHOICE = re.compile(r"(?:\(([A-K])\)|([A-K])(?:[.:)]|$))[ .:]*(.*)", re.DOTALL)


class Choice(NamedTuple):
    """One option of a multiple-choice question."""

    letter: str
    content: str
    """What the option says, empty if only the letter is given."""


def as_choice(text: str) -> Choice | None:
    """Read `B`, `(B)`, `B.`, `(B) 14` or `B. 14`; None for anything else."""
    match = _CHOICE.fullmatch(text)
    if match is None:
        return None
    letter, content = match[1] or match[2], match[3]
    # `(A)(x)` and `A:B` are products and ratios, `A. (2,5)` is an option.
    may_be_product = not text.startswith(f"{letter}.")
    if may_be_product and content[:1] in ("(", "[", "^", "_", "/", "+", "-", "=", "*"):
        return None
    return Choice(letter, content.strip())


_LETTERS = re.compile(r"[A-H](?:(?:,| and | )?[A-H])+", re.ASCII)


def as_choices(text: str) -> frozenset[str] | None:
    """Read several options at once (`ABD`, `A, B, D`); None for anything else."""
    if not _LETTERS.fullmatch(text.replace("and", " and ").replace("  ", " ")):
        return None
    letters = re.findall("[A-H]", text)
    return frozenset(letters) if letters == sorted(set(letters)) else None


_SYNONYMS = (
    "does not exist|do not exist|doesn't exist|not exist|nonexistent|dne|d.n.e|undefined"
    "|not defined|no limit|diverges|divergent|diverge|不存在",
    r"no solution|no solutions|no real solution|no real solutions|none|there is no solution"
    r"|there are no solutions|\emptyset|\{\}|empty set|the empty set|无解",
    r"infinity|\infty|+\infty|positive infinity|infinite|inf|+infinity|oo",
    r"-infinity|-\infty|negative infinity|minus infinity|-inf|-oo",
    r"all real numbers|\mathbb{r}|\mathbb r|all reals|the real numbers|(-\infty,\infty)"
    r"|(-\infty,+\infty)|all real x|any real number",
    "infinitely many|infinitely many solutions|infinite solutions|infinite number of solutions",
    "converges|convergent|converge",
)
_SUBJECT = re.compile(
    r"^(?:the |this )?(?:it|limit|series|sequence|integral|function|value|slope|equation)(?: is)? "
)
_GROUP_OF = {word: group for group, line in enumerate(_SYNONYMS) for word in line.split("|")}


def synonym_group(text: str) -> int | None:
    """Number of the group of phrases that mean the same, None for any other text."""
    return _GROUP_OF.get(_SUBJECT.sub("", text.casefold()))


_WORD = re.compile(
    r"(?=.*[A-Za-z]{3})(?:an? )?[A-Za-z]{2,}(?:[ ,'-]+[A-Za-z]+)*|yes|no",
    re.IGNORECASE,
)
_CJK = re.compile(r"[\u3400-\u9fff]")
_FUNCTIONS = re.compile(r"(?i)a?(?:sin|cos|tan|log|exp|max|min|gcd|lcm)\b")
_ARTICLE = re.compile(r"(?:an?|the) ")
_PUNCTUATION = re.compile(r"[\s.,;:'\"-]+")


def is_phrase(text: str) -> bool:
    """Tell whether a gold is words (`Evelyn`, `even`, Chinese), not a product of symbols."""
    if _CJK.search(text):
        return True
    return _WORD.fullmatch(text) is not None and not _FUNCTIONS.match(text)


def same_phrase(answer: str, gold: str) -> bool:
    """Tell whether two phrases are the same, upper and lower case and punctuation aside."""
    return _bare(answer) == _bare(gold)


def _bare(text: str) -> str:
    text = _ARTICLE.sub("", text.casefold(), count=1) if _ARTICLE.match(text.casefold()) else text
    return _PUNCTUATION.sub("", text.casefold())


_TIME = re.compile(r"\d{1,2}(?::\d{2})? ?[ap]m", re.IGNORECASE)


def is_time(text: str) -> bool:
    """Tell whether a gold is a time of day, `5 am` or `1:58 pm`."""
    return _TIME.fullmatch(text) is not None
