r"""How often grading is right: every gold of a folder in another spelling, and a near miss of it.

    python benchmarks/grading_table.py DATA_FOLDER [--policy rlsys] [--show] [--out FILE.jsonl]

DATA_FOLDER holds `*.jsonl` or `*.jsonl.gz` files whose rows have an `answer` and perhaps `answers`
(further accepted spellings). From each gold the script makes two texts, by fixed rules that know
nothing of the grader: one of equal value (1/2 for 0.5, `3\times 10^{6}` for `3e6`, an inequality
for an interval) and one that is slightly wrong (one more, another exponent, an open end for a
closed one). It prints, for each file, how many equal ones are graded right and how many near misses
are graded wrong. `--out` appends the counts to a file, one JSON object per row.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, get_args

from rlsys.config import Policy
from rlsys.grading.compare import decide
from rlsys.grading.golds import gold_text
from rlsys.grading.process import GradingProcess
from rlsys.types import Verdict


class Spelled(NamedTuple):
    """A gold written differently, and a near miss written in the same way."""

    kind: str
    equal: str
    wrong: str


_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"(-?\d*)\.(\d+)")
_SCIENTIFIC = re.compile(r"(-?\d+(?:\.\d+)?)\s*(?:e|\\times 10\^)\{?(-?\d+)\}?(?: Hz)?")
_FRACTION = re.compile(
    r"(?P<sign>-?)(?P<whole>\d*) ?"
    r"(?:\\[dt]?frac\s*(?:\{(-?\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))|(?<!\d)(\d+)/(\d+))"
)
_DEGREES = re.compile(r"(-?[\d.]+)\s*\^\{?\\circ\}?")
_MEASURED = re.compile(
    r"\\?\$?(-?\d[\d.]*)\s*(?:\\(?:text|mbox|mathrm)\s*\{[^{}]+\}|\\?%)?(?:\^2)?"
)
_CENTIMETRES = re.compile(r"(.+?)\s*\$?cm\^\{\d\}\$?")
_INTERVAL = re.compile(r"([(\[])([^,()\[\]]+),([^,()\[\]]+)([)\]])")
_LETTER = re.compile(r"(?:\\text\{)?\(?([A-K])\)?\}?")
_WORDS = re.compile(r"(?:\\text\{)?([A-Za-z][A-Za-z ]{2,})\}?")
_NAMED = re.compile(r"([A-Za-z](?:\([a-z]\))?)\s*=\s*([^=,]+)")


def respell(gold: str, number: int) -> Spelled:
    """Return the first rule's result that fits; `number` varies the spelling of integers."""
    gold = (
        gold.strip()
        .removeprefix("$")
        .removesuffix("$")
        .strip()
        .replace(r"\left", "")
        .replace(r"\right", "")
    )
    for rule in (
        _integer,
        _scientific,
        _decimal,
        _fraction,
        _degrees,
        _measured,
        _interval,
        _words,
    ):
        if (spelled := rule(gold, number)) is not None:
            return spelled
    return _named(gold) or _listed(gold) or _expression(gold)


def _integer(gold: str, number: int) -> Spelled | None:
    gold = re.sub(r",\\!\s*", ",", gold)
    plain = gold.replace(",", "") if re.fullmatch(r"-?\d{1,3}(?:,\d{3})+", gold) else gold
    if not _INTEGER.fullmatch(plain):
        return None
    value = int(plain)
    equal, wrong = (_integer_spellings(v) for v in (value, value + 1))
    form = number % len(equal)
    return Spelled("integer", equal[form], wrong[form % len(wrong)])


def _integer_spellings(value: int) -> list[str]:
    if abs(value) > 999:
        grouped = f"{value:,}"
        return [grouped, grouped.replace(",", "{,}"), grouped.replace(",", r"\,")]
    return [f"{value}.0", f"x = {value}", rf"\dfrac{{{2 * value}}}{{2}}", f"${value}$"]


def _scientific(gold: str, number: int) -> Spelled | None:
    match = _SCIENTIFIC.fullmatch(gold)
    if match is None:
        return None
    form = "{}e{}" if "times" in gold else r"{} \times 10^{{{}}}"
    equal, wrong = (form.format(match[1], int(match[2]) + more) for more in (0, 1))
    return Spelled("scientific", equal, wrong)


def _decimal(gold: str, number: int) -> Spelled | None:
    if not _DECIMAL.fullmatch(gold):
        return None
    value, digits = Fraction(gold), len(gold.partition(".")[2])
    near = value + Fraction(3, 10**digits)
    equal, wrong = (rf"\dfrac{{{v.numerator}}}{{{v.denominator}}}" for v in (value, near))
    return Spelled("decimal as fraction", equal, wrong)


def _fraction(gold: str, number: int) -> Spelled | None:
    match = _FRACTION.fullmatch(gold)
    if match is None:
        return None
    over, under = (int(part) for part in match.groups()[2:] if part is not None)
    value = (Fraction(over, under) + int(match["whole"] or 0)) * (-1 if match["sign"] else 1)
    near = value + Fraction(1, under)
    power = next((k for k in range(1, 7) if 10**k % under == 0), None)
    if power is not None:
        equal, wrong = (f"{float(v):.{power}f}" for v in (value, near))
        return Spelled("fraction as decimal", equal, wrong)
    equal, wrong = (f"{v.numerator}/{v.denominator}" for v in (value, near))
    return Spelled("fraction", equal, wrong)


def _degrees(gold: str, number: int) -> Spelled | None:
    match = _DEGREES.fullmatch(gold)
    if match is None:
        return None
    near = Fraction(match[1]) + 1
    return Spelled("degrees", rf"{match[1]}\text{{ degrees}}", rf"{float(near):g}\text{{ degrees}}")


def _measured(gold: str, number: int) -> Spelled | None:
    if centimetres := _CENTIMETRES.fullmatch(gold):
        return Spelled("unit removed", centimetres[1], f"{centimetres[1]}+1")
    match = _MEASURED.fullmatch(gold)
    return match and Spelled("unit removed", match[1], f"{float(match[1]) + 1:g}")


def _interval(gold: str, number: int) -> Spelled | None:
    match = _INTERVAL.fullmatch(gold)
    if match is None:
        return None
    left, low, high, right = (part.strip() for part in match.groups())
    if (left, right) == ("(", ")") and "infty" not in gold:
        return None  # a point or an open interval: the text does not tell
    below = "" if "infty" in low else low + (r" \leq " if left == "[" else " < ")
    above = "" if "infty" in high else (r" \leq " if right == "]" else " < ") + high
    near = f"{below}x{above}"
    flipped = near.replace("<", r"\leq") if "<" in near else near.replace(r"\leq", "<")
    return Spelled("interval as inequality", near, flipped)


def _words(gold: str, number: int) -> Spelled | None:
    if match := _LETTER.fullmatch(gold):
        letter = match[1]
        return Spelled("choice", rf"\textbf{{({letter})}}", rf"\textbf{{({chr(ord(letter) + 1)})}}")
    match = _WORDS.fullmatch(gold)
    return match and Spelled("words", rf"\text{{{match[1].capitalize()}.}}", rf"not {match[1]}")


def _named(gold: str) -> Spelled | None:
    match = _NAMED.fullmatch(gold)
    return match and Spelled("name removed", match[2], f"{match[2]} + 1")


def _listed(gold: str) -> Spelled | None:
    r"""Reverse a list or a set; put `\left` and spaces into a tuple."""
    if "|" in gold or r"\quad" in gold:
        return None  # a set of all x with a property
    inner = gold[2:-2] if gold.startswith(r"\{") else gold
    items = _split(inner)
    if len(items) > 1:
        left, right = (r"\left\{ ", r" \right\}") if inner != gold else ("", "")
        equal = left + ", ".join(reversed(items)) + right
        return Spelled("list in another order", equal, left + ", ".join(items[:-1]) + right)
    if (
        gold.startswith("(")
        and gold.endswith(")")
        and "cup" not in gold
        and len(items := _split(gold[1:-1])) > 1
    ):
        near = [*items[:-1], f"{items[-1]}+1"]
        equal, wrong = (r"\left( " + r" ,\; ".join(i) + r" \right)" for i in (items, near))
        return Spelled("tuple", equal, wrong)
    return None


def _split(text: str) -> list[str]:
    items, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip().strip("$") for item in items]


def _expression(gold: str) -> Spelled:
    if re.search(
        r"=|[<>]|\\[lg]e|\\in|\\cup|\\begin|\\text|[:;|\]]|[ap]m$| or | and |_\{?\d\}?$|\\pm", gold
    ):
        return Spelled(
            "spacing only", rf"\left. {gold} \right.".replace(r"\left. ", r"\; "), f"{gold} + 1"
        )
    return Spelled(
        "expression",
        rf"\frac{{2\left({gold}\right)}}{{2}}",
        rf"\frac{{2\left({gold}\right)+1}}{{2}}",
    )


def rows(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the gold text, all accepted spellings in it, and the answer to write differently."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    for line in text.splitlines():
        row = json.loads(line)
        yield gold_text(row.get("answers") or row["answer"]), row["answer"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Grade other spellings and near misses of golds.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--policy", choices=get_args(Policy), default="rlsys")
    parser.add_argument("--show", action="store_true", help="print every misjudged text")
    parser.add_argument("--out", type=Path, help="append the counts to this file")
    arguments = parser.parse_args()
    process = GradingProcess(5.0)
    print(
        "| file | golds | equal graded right | near miss graded wrong | in the caller | seconds |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for path in sorted(arguments.folder.glob("*.jsonl*")):
        counts = {"golds": 0, "right": 0, "wrong": 0, "easy": 0}
        start = time.monotonic()
        for number, (gold, answer) in enumerate(rows(path)):
            spelled = respell(answer, number)
            counts["golds"] += 1
            for text, expected, count in (
                (spelled.equal, True, "right"),
                (spelled.wrong, False, "wrong"),
            ):
                verdict = decide(text, gold, policy=arguments.policy)
                counts["easy"] += verdict is not None
                if verdict is None:
                    verdict = process.compare(text, gold, arguments.policy)
                if (verdict is Verdict.RIGHT) == expected:
                    counts[count] += 1
                elif arguments.show:
                    print(f"  {verdict.name} {spelled.kind}: gold {gold!r} text {text!r}")
        golds, name = counts["golds"], path.name.partition(".")[0]
        if arguments.out is not None:
            judged = {key: counts[key] for key in ("golds", "right", "wrong")}
            row = {"set": name, "policy": arguments.policy} | judged
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        print(
            f"| {name} | {golds} | {counts['right']} | {counts['wrong']} "
            f"| {counts['easy'] / (2 * golds):.0%} | {time.monotonic() - start:.1f} |"
        )
    process.close()


if __name__ == "__main__":
    main()
