r"""One spelling for one meaning: the same mathematics in other characters or other LaTeX commands.

`normalise` changes how an answer is written, never its value. Everything is a fixed list of
substitutions, applied in order and linear in the length of the text.
"""

from __future__ import annotations

import re

_CHARACTERS = str.maketrans(
    {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width ASCII
    | {0x2460 + i: f"({i + 1})" for i in range(20)}  # circled numbers
    | {ord(c): f"^{{{i}}}" for i, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
    | {ord(c): f"_{{{i}}}" for i, c in enumerate("₀₁₂₃₄₅₆₇₈₉")}
    | {ord(c): " " for c in "\u00a0\u2002\u2003\u2009\u202f\u3000"}
    | {ord(c): "-" for c in "\u2010\u2011\u2012\u2013\u2212"}
    | {ord(c): "" for c in "\u200b\u200c\u200d\u2060\ufeff"}
    | {ord(c): '"' for c in "“”„"}
    | {ord(c): "'" for c in "‘’"}
    | {ord("×"): r"\times ", ord("·"): r"\cdot ", ord("⋅"): r"\cdot ", ord("÷"): r"\div "}
    | {ord("≤"): r"\le ", ord("≥"): r"\ge ", ord("≠"): r"\ne ", ord("≈"): r"\approx "}
    | {ord("π"): r"\pi ", ord("∞"): r"\infty ", ord("√"): r"\sqrt ", ord("±"): r"\pm "}
    | {ord("°"): r"^\circ ", ord("∪"): r"\cup ", ord("∩"): r"\cap ", ord("∈"): r"\in "}
    | {ord("∅"): r"\emptyset ", ord("…"): r"\ldots ", ord("Å"): "angstrom", ord("Å"): "angstrom"}
    | {ord("½"): r"\frac{1}{2}", ord("¼"): r"\frac{1}{4}", ord("¾"): r"\frac{3}{4}"}
    | {ord("。"): ".", ord("、"): ",", ord("α"): r"\alpha ", ord("θ"): r"\theta "}
)
_PLAIN = re.compile(r"[A-Za-z0-9.,+-]*", re.ASCII)

_COMMAND_END = r"(?![a-zA-Z])"
_ANY_TEXT = r"(?<=[\d}])\s*(?:\\text\s*\{\s*)?"
_LOOKS = r"\\(?:left|right|displaystyle|textstyle|limits|rm|bf|[bB]igg?[lr]?)" + _COMMAND_END
_SCIENTIFIC = r"(?<![A-Za-z\\\d.])(\d++(?:\.\d*+)?|\.\d++)[eE]([+-]?\d++)(?!\.\d|[\^A-Za-z(])"
_REWRITES = tuple(
    (trigger, re.compile(pattern), replacement)
    for trigger, pattern, replacement in (
        # Commands that change only how the answer looks. `(?<!\\)` spares `\\`, the end of a row.
        ("box", r"^\s*\\(?:boxed|fbox)\s*\{(.*)\}\s*$", r"\1"),
        ("\\", _LOOKS, ""),
        ("color", r"\\(?:text)?color\s*(?:\[\w+\])?\s*\{[^{}]*\}", ""),
        (
            "\\",
            r"\\(?:underline|boldsymbol|bm|pmb|num|mathbf|mathbb(?=\{\d))\s*\{([^{}]*)\}",
            r"\1",
        ),
        ("\\", r"(?<!\\)\\[()\[\]]", " "),
        # A comma that LaTeX sets without space, and a thin space, separate thousands.
        (",", r"(?<=\d)(?:\{,\}|,\\!)\s*(?=\d)", ","),
        ("\\!", r"(?<!\\)\\!", ""),
        ("", r"(?<=\d)(?:\\[,;: ]|~)\s*(?=\d{3}(?!\d))", ""),
        ("", r"(?<!\\)\\(?:[,;: ]|q?quad" + _COMMAND_END + r")|~", r"\\;"),
        ("frac", r"\\[dtc]frac" + _COMMAND_END, r"\\frac"),
        ("\\le", r"\\le(?:q|qslant|slant)?" + _COMMAND_END, r"\\le "),
        ("\\ge", r"\\ge(?:q|qslant|slant)?" + _COMMAND_END, r"\\ge "),
        ("\\lt", r"\\lt" + _COMMAND_END, "<"),
        ("\\gt", r"\\gt" + _COMMAND_END, ">"),
        ("\\neq", r"\\neq" + _COMMAND_END, r"\\ne "),
        ("\\", r"\\(?:mid|[lr]?vert)" + _COMMAND_END, "|"),
        ("\\lbrace", r"\\lbrace" + _COMMAND_END, r"\\{"),
        ("\\rbrace", r"\\rbrace" + _COMMAND_END, r"\\}"),
        ("\\colon", r"\\colon" + _COMMAND_END, ":"),
        ("\\", r"\\(?:varnothing|empty)" + _COMMAND_END, r"\\emptyset "),
        ("dots", r"\\(?:cdots|dots[a-z]?)" + _COMMAND_END, r"\\ldots "),
        ("...", r"\.\.\.", r"\\ldots "),
        ("\\degree", r"\^?\s*\\degrees?" + _COMMAND_END, r"^\\circ "),
        (
            "\\circ",
            r"\^\s*(?:\{\s*\\circ\s*\}|\\circ" + _COMMAND_END + ")",
            r"^\\circ ",
        ),
        ("\\circ", r"(?:\^\\circ\s*){2,}", r"^\\circ "),
        ("\\langle", r"\\langle" + _COMMAND_END, "("),
        ("\\rangle", r"\\rangle" + _COMMAND_END, ")"),
        ("degree", _ANY_TEXT + r"degrees?\b\s*\}?", r"^\\circ "),
        ("p", _ANY_TEXT + r"(?:percent(?:age)?|pct)\b\s*\}?", "%"),
        (" x ", r"(?<=[\d}])\s+x\s+(?=\d)", r"\\times "),
        ("np.", r"\bnp\.", r"\\"),
        ("\\AA", r"\\AA" + _COMMAND_END, " angstrom"),
        ("\\textcircled", r"\\textcircled\s*\{?\s*(\w+)\s*\}?", r"(\1)"),
        ("\\", r"\\(?:mathrm|text|operatorname|mathit)\s*\{\s*([ie])\s*\}", r"\1"),
        ("m", r"\b([ap])\.\s?m\b", r"\1m"),
        ("%", r"\\%", "%"),
        ("**", r"(?<=[\w)}])\s*\*\*\s*(?=[\w({.+-])", "^"),
        ("", r"\*\*|`", ""),
        ("", r"\\\$|\$|\\pounds" + _COMMAND_END + "|[€£¥]", ""),
        # Euler's number never stands between two numbers: `3e6` is scientific notation.
        ("e", _SCIENTIFIC, r"\1\\times 10^{\2}"),
        ("E", _SCIENTIFIC, r"\1\\times 10^{\2}"),
        ("10", r"(?<=\d)\s*(?:\\times|\\cdot|\*|[xX])\s*10\s*\^\s*", r"\\times 10^"),
        ("10^", r"(?<=\\times 10\^)([+-]?\d+)", r"{\1}"),
        # Every argument in braces.
        ("\\", r"\\(frac|sqrt)\s+", r"\\\1"),
        ("\\frac", r"\\frac(\d)\s*(?=[\d{])", r"\\frac{\1}"),
        ("\\frac", r"(\\frac\{[^{}]*\})\s*(\d)", r"\1{\2}"),
        ("sqrt", r"(?:\\|\b)sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        ("^", r"\^\s*\(([^()]*)\)", r"^{\1}"),
        ("\\sqrt", r"\\sqrt(\w)", r"\\sqrt{\1}"),
    )
)
"""What must occur in a text for the pattern to match, the pattern and its replacement."""
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|sf|tt)?|math(?:rm|bf|it|sf)|mbox|bm)\s*\{([^{}\\]*)\}"
)
_EDGES = " \t\n.,;:"
_QUOTED = re.compile(r"([\"'])(.*)\1", re.DOTALL)
_BRACED = re.compile(r"\{([^{}]*)\}")
_RUN = re.compile(r"\s+")
_SPACE_RUN = re.compile(r"(?:\\;|\s){2,}")
_SPACES = re.compile(r"(?:\s|\\;)+")
_SPACED_SIGN = re.compile(r" ?([^\w\s\\]) ?")
_LIST_SPACE = re.compile(r" (?=\d{3}(?!\d))")
_SHORT_SCRIPT = re.compile(r"([\^_])\{(\w)\}")
_REMOVABLE_SPACE = re.compile(r"(?<![\d,]) +| +(?!\d)")


def tidy(text: str) -> str:
    r"""Return the text in plain characters and few LaTeX commands; `\text{}` and `\;` stay.

    Example: tidy("$\\dfrac12$") == r"\frac{1}{2}", tidy("3e6") == r"3\times 10^{6}"
    """
    if not _PLAIN.fullmatch(text) or "e" in text or "E" in text:
        if not text.isascii():
            text = text.translate(_CHARACTERS)
        # Long runs of space would make patterns with `\s*` slow.
        text = _RUN.sub(" ", text)
        for trigger, pattern, replacement in _REWRITES:
            if trigger in text:  # most are not, and this is ten times cheaper
                text = pattern.sub(replacement, text)
        text = _SPACE_RUN.sub(_one_space, text)
    return _trim(text)


def _one_space(match: re.Match[str]) -> str:
    r"""Keep the `\;` of a run of spaces, which tells a unit."""
    return r"\;" if "\\" in match[0] else " "


def _trim(text: str) -> str:
    while True:
        # The full stop of `.5` stays, the one of `5.` does not count.
        shorter = text.strip().rstrip(_EDGES).removesuffix("\\;").removeprefix("\\;")
        for wrapping in (_QUOTED, _BRACED):
            if match := wrapping.fullmatch(shorter):
                shorter = match[match.lastindex or 0]
        if shorter == text:
            return text
        text = shorter


def normalise(text: str) -> str:
    r"""Return the spelling that decides whether two answers are literally the same.

    Spacing, dollar signs, `\text{}`, `\left`, `\dfrac`, `**` and a final full stop do not count.
    The space in `1, 234` stays: it tells that list from the number 1,234.
    """
    return normal_form(tidy(text))


def normal_form(text: str) -> str:
    """Do what is left of `normalise` for a text that is `tidy`."""
    if _PLAIN.fullmatch(text):
        return text
    text = _SPACES.sub(" ", _TEXT.sub(r" \1 ", text))
    text = _SPACED_SIGN.sub(_close_up, text)
    return _SHORT_SCRIPT.sub(r"\1\2", _trim(text))


def _close_up(match: re.Match[str]) -> str:
    sign = match[1]
    return f"{sign} " if sign == "," and _LIST_SPACE.match(match.string, match.end(1)) else sign


def squeeze(text: str) -> str:
    """Return a normal form without any space, except where one separates numbers."""
    return _REMOVABLE_SPACE.sub("", text)
