"""The program inside a killable grading process: compares two answers, for ever.

Run as `python -m rlsys.grading.worker TIMEOUT_S MEMORY_MIB` by rlsys.grading.process.
It reads one JSON line `[policy, answer, golds, tolerance]` per comparison and writes one byte:
b"0" wrong, b"1" right, b"2" invalid, b"m" out of memory; b"r" once it is ready. End of input ends
it. Text goes through a LaTeX grammar only, never through eval. What the grammar makes of a text may
still run for ever, hence the process.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from fractions import Fraction

from rlsys.grading.algebra import equal, is_read, plain_equal
from rlsys.grading.policy import Gold, judge

READY = b"r"
READS = "reads"
"""In place of a policy, asks whether the grammar reads the answer."""
WRONG, RIGHT, INVALID, OUT_OF_MEMORY = b"0", b"1", b"2", b"m"

_FULL = 0.9
"""Share of the memory limit from which a verdict is not trusted: libraries hide a MemoryError."""


def compare(policy: str, answer: str, golds: list[str], tolerance: str | None = None) -> bytes:
    """Return RIGHT or WRONG, INVALID if a library raised, or OUT_OF_MEMORY."""
    gold = Gold(tuple(golds), None if tolerance is None else Fraction(tolerance))
    try:
        return RIGHT if _compare(policy, answer, gold) else WRONG
    except MemoryError:
        return OUT_OF_MEMORY
    except Exception:
        return INVALID


def _compare(policy: str, answer: str, gold: Gold) -> bool:
    match policy:
        case "math-verify":
            return any(plain_equal(answer, text) for text in gold.answers)
        case _ if policy == READS:
            return is_read(answer)
    return judge(answer, gold, equal) is True


def _peak_mib() -> float:
    """Most address space that this process ever had."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmPeak"):
                return int(line.split()[1]) / 1024
    return 0.0


def serve(timeout_s: float, memory_mib: int) -> None:
    """Answer comparisons until the input ends."""
    # Ctrl-C reaches the whole foreground group; this process ends when its parent closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A parent that is gone before it reads a verdict is no error to print.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    verdicts = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a library that prints must not look like a verdict
    logging.disable(logging.CRITICAL)
    for policy in ("rlsys", "math-verify"):
        compare(policy, "x+1", ["1+x"])  # imports everything and warms the grammar
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib << 20, memory_mib << 20))
    verdicts.write(READY)
    for line in sys.stdin:
        question = json.loads(line)
        # If the parent was killed nobody will kill us: the kernel does, without any handler.
        signal.setitimer(signal.ITIMER_REAL, timeout_s + 1.0)
        verdict = compare(*question)
        signal.setitimer(signal.ITIMER_REAL, 0)
        verdicts.write(OUT_OF_MEMORY if _peak_mib() > _FULL * memory_mib else verdict)


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
