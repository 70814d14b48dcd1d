"""The program inside a killable grading process: compares two answers with math-verify, for ever.

Run as `python -m rlsys.grading.worker TIMEOUT_S MEMORY_MIB` by rlsys.grading.process.
It reads one JSON line `[answer, gold]` per comparison and writes one byte: b"0" wrong, b"1" right,
b"2" invalid; b"r" once it is ready. End of input ends it. Text goes through a LaTeX grammar only,
never through eval; what the grammar makes of it may still run for ever, hence the process.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

READY = b"r"
WRONG, RIGHT, INVALID = b"0", b"1", b"2"


@lru_cache(maxsize=4096)
def _parse(text: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    # No plain-expression extraction: it would pick a number out of text that is not an answer.
    expressions: list[Any] = parse(
        f"\\boxed{{{text}}}",
        [LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=True,
    )
    return expressions


def compare(answer: str, gold: str) -> bytes:
    """Return RIGHT or WRONG, or INVALID if math-verify raised."""
    from math_verify import verify

    try:
        equal = verify(_parse(gold), _parse(answer), timeout_seconds=None, raise_on_error=True)
    except Exception:
        return INVALID
    return RIGHT if equal else WRONG


def serve(timeout_s: float, memory_mib: int) -> None:
    """Answer comparisons until the input ends."""
    # Ctrl-C reaches the whole foreground group; this process ends when its parent closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A parent that is gone before it reads a verdict is no error to print.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    verdicts = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a library that prints must not look like a verdict
    logging.disable(logging.CRITICAL)
    compare("x+1", "1+x")  # imports everything and warms the grammar
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib << 20, memory_mib << 20))
    verdicts.write(READY)
    for line in sys.stdin:
        answer, gold = json.loads(line)
        # If the parent was killed nobody will kill us: the kernel does, without any handler.
        signal.setitimer(signal.ITIMER_REAL, timeout_s + 1.0)
        verdict = compare(answer, gold)
        signal.setitimer(signal.ITIMER_REAL, 0)
        verdicts.write(verdict)


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
