"""Do the tests notice plausible mistakes? Each mutant of mutants.toml is one mistake.

    python tests/mutants.py               apply every mutant to a copy of the tree, one at a time,
                                          and run the tests that must fail; exit 1 if they pass
    python tests/mutants.py --only NAME   the mutants whose name contains NAME
    python tests/mutants.py --check       only check that every mutant applies to this tree

A mutant that survives needs a stronger test, not a weaker mutant.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("actors", "benchmarks", "configs", "examples", "learner", "rlsys", "tests")
TIMEOUT_S = 120
"""Of one pytest run; a mutant that makes the tests hang is noticed, too."""


class Mutant(NamedTuple):
    """A mistake, and the quick tests that must notice it."""

    name: str
    file: str
    old: str
    """Occurs exactly once in the file."""
    new: str
    tests: list[str]
    """Paths and node ids; all of them pass without the mistake."""


def read_mutants() -> list[Mutant]:
    """The mutants of mutants.toml."""
    tables = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]
    return [Mutant(**table) for table in tables]


def misfits(mutants: Sequence[Mutant]) -> list[str]:
    """Sentences on mutants that do not apply to this tree."""
    faults = []
    for mutant in mutants:
        found = (ROOT / mutant.file).read_text().count(mutant.old)
        if found != 1:
            faults.append(f"{mutant.name}: its old text occurs {found} times in {mutant.file}")
        files = [test.partition("::")[0] for test in mutant.tests]
        faults += [f"{mutant.name}: there is no {f}" for f in files if not (ROOT / f).is_file()]
    return faults


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[int | None, str]:
    """Exit code of the quick ones of `tests` in a copy of the tree, None if they hang; output."""
    options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    # No bytecode: two mutants of one file may have the same size and time, which is all that
    # Python compares.
    environ = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return None, f"no end within {TIMEOUT_S} s"
    return done.returncode, done.stdout + done.stderr


def copy_tree(target: Path) -> Path:
    """Copy what the tests need, without bytecode."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, target / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", target)
    return target


def fault_of(mutant: Mutant, tree: Path) -> str | None:
    """Apply a mutant to `tree` for one run; return what is wrong with its tests, or None."""
    file = tree / mutant.file
    whole = file.read_text()
    file.write_text(whole.replace(mutant.old, mutant.new))
    try:
        code, output = run_tests(tree, mutant.tests)
    finally:
        file.write_text(whole)
    match code:
        case 1 | None:  # a test failed, or they hang
            return None
        case 0:
            return f"SURVIVED: {mutant.name} ({mutant.file}); strengthen {' '.join(mutant.tests)}"
        case _:
            return f"BROKEN: {mutant.name}: pytest ended with {code}\n{output[-2000:]}"


def hunt(mutants: Sequence[Mutant], jobs: int) -> list[str]:
    """Run every mutant, `jobs` at a time; return the faults."""
    with tempfile.TemporaryDirectory() as folder:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for job in range(jobs):
            trees.put(copy_tree(Path(folder) / str(job)))

        def one(mutant: Mutant) -> str | None:
            tree, start = trees.get(), time.monotonic()
            try:
                fault = fault_of(mutant, tree)
            finally:
                trees.put(tree)
            print(f"{time.monotonic() - start:5.1f} s  {fault or mutant.name}", flush=True)
            return fault

        with ThreadPoolExecutor(jobs) as pool:
            code, output = pool.submit(
                run_tests, copy_tree(Path(folder) / "whole"), all_tests(mutants)
            ).result()
            if code != 0:
                return [f"the tests fail without any mutant:\n{output[-4000:]}"]
            return [fault for fault in pool.map(one, mutants) if fault]


def all_tests(mutants: Sequence[Mutant]) -> list[str]:
    """Every test of the list, once."""
    return sorted({test for mutant in mutants for test in mutant.tests})


def main() -> int:
    """Parse the command line; 0 if every mutant was noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--only", default="", help="a part of the names of the mutants to run")
    parser.add_argument("--check", action="store_true", help="only check that they apply")
    options = parser.parse_args()
    mutants = [mutant for mutant in read_mutants() if options.only in mutant.name]
    faults = misfits(mutants)
    if not faults and not options.check:
        start = time.monotonic()
        faults = hunt(mutants, options.jobs)
        print(f"{len(mutants)} mutants, {len(faults)} faults, {time.monotonic() - start:.0f} s")
    for fault in faults:
        print(fault, file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
