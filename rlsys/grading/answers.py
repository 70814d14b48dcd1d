r"""Where the answer of a response stands, and how data sets write a gold answer.

Everything here is a pure function of text, linear in its length, and never evaluates anything.

Extraction (rlsys.grading.policy states how an answer is then compared):
1. Only text after the last `</think>` counts, or all of it where there is none.
2. If a line of that text begins with the header `**Final Answer**` (or `### Final Answer`), only
   the text after the first such header counts. It ends at the first blank line after its first box
   (arXiv 2505.13438, reward of the published code): a check in a later paragraph does not count.
3. The answer is what the last `\boxed{...}` or `\fbox{...}` holds, braces matched. Boxes joined by
   nothing but `and`, `or`, `,` or `;` are the values of one answer: `\boxed{2} or \boxed{3}` is
   `2, 3`. No box is no answer. Neither is a last box that never closes (a cut-off answer) or closes
   only after 65,536 characters, nor `\boxed 7` without braces.
"""

from __future__ import annotations

import re

THINK_END = "</think>"

_HEADER = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]*\**|\*\*)Final Answer[ \t]*:?(?:\*\*)?[ \t]*:?", re.MULTILINE
)
_BLANK_LINE = re.compile(r"\n\s*\n")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
# Greedy from the start, so that the last box is found in one pass over any text.
_LAST_BOX = re.compile(r".*(\\(?:boxed|fbox)\s*\{)", re.DOTALL)
_LONGEST_BOX = 65_536
_MOST_VALUES = 40
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_LONGEST_JOIN = 60
_BETWEEN_VALUES = re.compile(
    r"[\s$]*(?:\\[)\]])?[\s$]*(?:[,;]|(?:[,;]\s*)?(?:\\text\s*\{\s*)?\b(?:and|or)\b\s*\}?|[和或、])"
    r"[\s$]*(?:\\[(\[])?[\s$]*(?:[A-Za-z](?:_\{?\w\}?)?\s*=\s*)?"
)


def extract_answer(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` of the answer paragraph, or None.

    Example: extract_answer(r"so </think> it is \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    """
    text = text.rpartition(THINK_END)[2]
    header = _HEADER.search(text)
    if header is not None:
        text = _to_blank_line(text[header.end() :])
    values: list[str] = []
    after = len(text)
    while len(values) < _MOST_VALUES and (box := _LAST_BOX.match(text, 0, after)) is not None:
        end = _closing_brace(text, box.end(), after)
        if end is None or (values and not _joined(text[end + 1 : after])):
            break
        values.insert(0, text[box.end() : end].strip())
        after = box.start(1)
    # A value that is boxed twice is one value.
    return ", ".join(dict.fromkeys(values)) if values else None


def _joined(between: str) -> bool:
    """Tell whether the text between two boxes makes them the values of one answer."""
    return len(between) <= _LONGEST_JOIN and _BETWEEN_VALUES.fullmatch(between) is not None


def _to_blank_line(text: str) -> str:
    """Cut a text at the first blank line that follows a closed box."""
    box = _BOX.search(text)
    while box is not None:
        following = _BOX.search(text, box.end())
        after = len(text) if following is None else following.start()
        end = _closing_brace(text, box.end(), after)
        if end is not None:
            blank = _BLANK_LINE.search(text, end)
            return text if blank is None else text[: blank.start()]
        box = following
    return text


def _closing_brace(text: str, start: int, stop: int) -> int | None:
    """Return where the brace closes that was opened before `start`, None if not before `stop`.

    A box that does not close before the next one begins holds that one: the inner one counts.
    """
    stop = min(stop, start + _LONGEST_BOX)
    if text.find("}", start, stop) < 0:
        return None  # at once, where a hostile text repeats `\boxed{`
    depth = 1
    for brace in _BRACE.finditer(text, start, stop):
        # An escaped brace (a LaTeX set) is text, hence the `\\.` branch of the pattern.
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return brace.start()
    return None


_GOLD_MARKS = (re.compile(r"####\s*(.*)"), re.compile(r"(?i)the answer is:?\s*(.*)"))
_SOLUTION = re.compile(r"(?i)\$?\s*\bsolution\s*:.*", re.DOTALL)


def clean_gold(text: str) -> str:
    r"""Return the answer that a gold column means, empty if it means none.

    `... #### 240`, `The answer is: 240`, `$\boxed{240}$` and `240.` are all `240`.
    """
    if _BOX.search(text):
        return extract_answer(text) or ""
    for mark in _GOLD_MARKS:
        if matches := mark.findall(text):
            text = matches[-1]
            break
    # `$145$solution: ...` is an answer with the solution behind it.
    text = _SOLUTION.sub("", text).strip().removesuffix(".").rstrip()
    if text.count("$") == 1:
        text = text.replace("$", "") if "\\$" not in text else text
    if len(text) > 1 and text[0] == text[-1] == "$" and text.count("$") == 2:
        text = text[1:-1].strip()
    return text
