r"""Units behind a value: found, taken off, and compared where both are known.

`tidy` text (rlsys.grading.spelling) goes in, because `\text{}` and `\;` tell a unit from a product
of symbols: `6\;m` and `6\text{ m}` are six metres, the `m` of `6m` may be a variable.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_SYNONYMS = {
    "m": "m meter meters metre metres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters",
    "km": "km kilometer kilometers kilometre kilometres",
    "nm": "nm nanometer nanometers",
    "angstrom": "angstrom angstroms",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "kg": "kg kilogram kilograms",
    "g": "g gm gram grams",
    "mg": "mg milligram milligrams",
    "lb": "lb lbs pound pounds",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years yr yrs",
    "mph": "mph",
    "km/h": "km/h kmh kph",
    "m/s": "m/s",
    "l": "l L liter liters litre litres",
    "ml": "ml mL milliliter milliliters",
    "J": "J joule joules",
    "eV": "eV",
    "keV": "keV",
    "kcal": "kcal",
    "erg": "erg ergs",
    "K": "K kelvin",
    "Hz": "Hz hertz",
    "N": "N newton newtons",
    "W": "W watt watts",
    "V": "V volt volts",
    "cent": "cent cents",
    "dollar": "dollar dollars USD",
    "degree": "degree degrees deg",
    "radian": "radian radians rad",
    "percent": "percent percentage pct",
}
_CANONICAL = {word: unit for unit, words in _SYNONYMS.items() for word in words.split()}
_ANGLE_OR_SHARE = ("degree", "percent")
_CJK = r"\u3400-\u9fff"

# A unit in roman type: any number of groups, each with a power, joined by spaces, dots or slashes.
_GROUP = r"\\(?:text(?:bf|it|rm)?|mathrm|mbox)\s*\{[^{}\\]*(?:\\;[^{}\\]*)?\}"
_POWER = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|-?\d))?"
_JOIN = r"(?:\s|\\;|\\cdot(?![a-zA-Z])|\.|/)*"
_QUOTIENT = rf"\\frac\s*\{{\s*{_GROUP}{_POWER}\s*\}}\s*\{{\s*{_GROUP}{_POWER}\s*\}}"
_ROMAN = re.compile(rf"(?:{_JOIN}(?:{_GROUP}{_POWER}|{_QUOTIENT}))+$")
_WORDS = sorted((word for word in _CANONICAL if len(word) > 1), key=len, reverse=True)
_NAMES = "|".join(map(re.escape, _WORDS))
_COMPOUND = rf"(?:sq(?:uare|\.)?\s+|cubic\s+)?(?:{_NAMES}){_POWER}"
# Unit words count without roman type; a lone letter only behind an explicit space.
_BARE = re.compile(
    rf"(?:(?<=[\d)}}%])|(?<=\s)|(?<=\\;)|(?<=\\pi)|(?<=\\pi\s))(?<![a-zA-Z]\s)(?:\\;|\s)*{_COMPOUND}"
    rf"(?:(?:\s*/\s*|\s+per\s+|\s+){_COMPOUND}|\s*/\s*[sh])*$"
)
_LETTER = re.compile(rf"\\;\s*[mgshlLJKNWV]{_POWER}$")
_CHINESE = re.compile(rf"(?<=[\d}})])\s*(?:\\text\s*\{{)?\s*[{_CJK}/]+\s*\}}?$")
_ENGLISH = re.compile(r"(?<=\d)\s+(?!(?:and|or|to|if|when|for)\b)[A-Za-z][A-Za-z .'/-]*$")
_SINGLE = re.compile(r"(?<=\d)\s*[mgshlLJKNWV](?:\^\{?[23]\}?)?$")


class Measured(NamedTuple):
    """A value and the unit behind it, both as text."""

    value: str
    unit: str | None
    """Canonical name with its power, "?" for a unit that is not known, None without a unit."""


def split_unit(text: str, *, of_number: bool = False) -> Measured:
    """Take the unit off the end of a `tidy` text.

    `of_number` is for texts that can only be a number with a unit, because the other side is a
    number: any word and any unit letter behind the digits is then a unit.
    """
    patterns = [_ROMAN, _CHINESE, _LETTER, _BARE]
    if of_number:
        patterns += [_SINGLE, _ENGLISH]
    for pattern in patterns:
        match = pattern.search(text)
        if match is None or not _ends_a_value(text[: match.start()]):
            continue
        if pattern is _ROMAN and not _is_unit(match.group()):
            continue
        value = text[: match.start()].rstrip().removesuffix("\\;").rstrip()
        return Measured(value, _canonical(match.group()))
    return Measured(text, None)


def same_unit(answer: str | None, gold: str | None) -> bool:
    """Tell whether units agree. One that is missing or not known agrees with every other."""
    return answer == gold or None in (answer, gold) or "?" in (answer, gold)


_VALUE_END = re.compile(r"[\w)}\]%]\s*(?:\\;|~)*\s*$")


def _ends_a_value(text: str) -> bool:
    return _VALUE_END.search(text[-12:]) is not None


_TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm)?|mathrm|mbox)|\\;|[{}~]")
_NO_UNIT = re.compile(r"(?i)\b(?:and|or|if|when|for|where|to|is|are|not|with|any|all|mod)\b")


def _is_unit(group: str) -> bool:
    words = _TEXT_COMMAND.sub(" ", group)
    return bool(re.search(rf"[A-Za-z{_CJK}]", words)) and not _NO_UNIT.search(words)


_SQUARED = re.compile(r"^(?:sq(?:uare|\.)?|cubic)\s+")


def _canonical(unit: str) -> str:
    words = " ".join(_TEXT_COMMAND.sub(" ", unit).split())
    power = ""
    if match := _SQUARED.match(words):
        power, words = ("3" if words.startswith("cubic") else "2"), words[match.end() :]
    if match := re.search(r"\s*\^\s*(-?\d)$", words):
        power, words = match[1], words[: match.start()]
    known = _CANONICAL.get(words)
    return "?" if known is None or known in _ANGLE_OR_SHARE else known + power
