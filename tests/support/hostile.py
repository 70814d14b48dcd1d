"""A seeded generator of texts that attack whoever parses, evaluates, stores or prints them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

CANARY = "rlsys-hostile-canary"
"""Name of the file that every piece of code in the texts tries to create."""

Make = Callable[[random.Random], str]


def hostile_strings(count: int, seed: int, folder: str) -> Iterator[str]:
    """Yield `count` texts; code in them tries to create the file CANARY in `folder`."""
    rng = random.Random(seed)

    def code(rng: random.Random) -> str:
        return rng.choice(_CODE).format(path=f"{folder}/{CANARY}")

    kinds: list[Make] = [*_KINDS, code]
    for _ in range(count):
        text = rng.choice(kinds)(rng)
        if rng.random() < 0.3:  # two kinds in one text
            place = rng.randrange(len(text) + 1)
            text = text[:place] + rng.choice(kinds)(rng) + text[place:]
        yield text


def _nested(rng: random.Random) -> str:
    begin, end = rng.choice(
        [("(", ")"), ("{", "}"), ("[", "]"), (r"\sqrt{", "}"), (r"\frac{1}{", "}"), ("-", "")]
    )
    depth = int(10 ** rng.uniform(0, 3.5))
    return begin * depth + "1" + end * (depth if rng.random() < 0.8 else depth // 2)


def _huge(rng: random.Random) -> str:
    big = str(rng.randrange(10, 10**9))
    return rng.choice(
        [
            "9" + "^{9" * rng.randrange(2, 9) + "}" * 8,
            f"{big}**{big}**{big}",
            f"10^{{{big}}}",
            f"1e{big}",
            f"{big}!" + "!" * rng.randrange(3),
            "9" * int(10 ** rng.uniform(1, 5)),
            f"0.{'0' * int(10 ** rng.uniform(1, 4))}1",
            rf"\binom{{{big}}}{{{int(big) // 2}}}",
            rf"\sum_{{i=1}}^{{{big}}} i^{{i}}",
            rf"\int_0^{{{big}}} x^{{x^x}} dx",
            f"(x+1)^{{{big}}}",
        ]
    )


def _unicode(rng: random.Random) -> str:
    parts = [
        "\u202e" + "123" + "\u202c",
        "e\u0301" * rng.randrange(1, 200),
        "a" + "\u0300" * rng.randrange(1, 2000),
        "\u0661\u0662\u0663",
        "\uff11\uff12",
        "\u00bd\u00b2\u2155",
        "\ud800",
        "\udfff" * rng.randrange(1, 9),
        "\x00",
        "\x1b[2J\x1b]0;owned\x07",
        "\ufeff1",
        "\u200b".join("12345"),
        "\U0001d7d9\U0001f4a3",
        "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randrange(1, 50))),
        "\r\n\t\v\f\u2028\u0085",
    ]
    return "".join(rng.sample(parts, rng.randrange(1, 5)))


def _latex(rng: random.Random) -> str:
    return rng.choice(
        [
            r"\def\a{\b\b}\def\b{\c\c}\def\c{\d\d}\a" * rng.randrange(1, 50),
            r"\newcommand{\x}{\x}\x",
            r"\input{/etc/passwd}",
            r"\write18{id}",
            r"\begin{pmatrix}" + "1&" * rng.randrange(1, 500) + r"1\end{pmatrix}",
            r"\text{" * rng.randrange(1, 100) + "1",
            r"\left" * rng.randrange(1, 50) + "(" + r"\right)",
            r"\boxed{" * rng.randrange(1, 100) + "7" + "}" * rng.randrange(100),
            r"$$\[\(" * rng.randrange(1, 100),
            r"\frac" * rng.randrange(1, 300),
            ",".join(str(i) for i in range(rng.randrange(2, 800))),
            r"\{" + ",".join(f"x_{{{i}}}" for i in range(rng.randrange(2, 100))) + r"\}",
        ]
    )


def _formats(rng: random.Random) -> str:
    return rng.choice(
        [
            "%s%n%x" * rng.randrange(1, 50),
            "{0.__class__.__mro__}",
            "{:>" + "9" * rng.randrange(1, 12) + "}",
            "[bold red]x[/]" * rng.randrange(1, 20),
            "[/]",
            "[link=file:///etc/passwd]x[/link]",
            "${jndi:ldap://127.0.0.1/a}",
            "<script>alert(1)</script>",
            "'; DROP TABLE answers; --",
            '{"type": "reset", "data": {}}',
            "]]>&lol;" * rng.randrange(1, 50),
            "!!python/object/apply:os.getpid []",
            "NaN Infinity -0 1_000 0x10 1e400 ٣",
        ]
    )


def _long(rng: random.Random) -> str:
    unit = rng.choice(["1+", "x", "(", "so ", "\\", "1,", "^", "{}", "\u00e9", "1/"])
    return unit * int(10 ** rng.uniform(2, 4.7))


_KINDS: list[Make] = [_nested, _huge, _unicode, _latex, _formats, _long]
_CODE = [
    "__import__('os').system('touch {path}')",
    "open('{path}','w')",
    "exec(\"open('{path}','w')\")",
    "[c for c in ().__class__.__base__.__subclasses__()]",
    "(lambda: open('{path}','w'))()",
    "sympify(\"open('{path}','w')\")",
    "`touch {path}`",
    "$(touch {path})",
    "Function('open')('{path}','w')",
    "().__class__.__bases__[0].__subclasses__()[-1]('{path}')",
    "eval(compile(\"open('{path}','w')\",'','exec'))",
    "breakpoint()",
    "while True: pass",
    "'a'*10**10",
]
