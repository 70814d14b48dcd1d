"""The problems of configs/paper as JSONL files with the columns id, problem and answer.

    python benchmarks/paper_data.py fetch data/paper                     from the Hugging Face hub
    python benchmarks/paper_data.py fetch data/paper --source FOLDER     from FOLDER/**/NAME.*
    python benchmarks/paper_data.py fetch data/paper --only aime24 amc23
    python benchmarks/paper_data.py solved data/paper/deepscaler.jsonl OUT SAMPLES...

`solved` keeps the problems that a model answered right at least once. SAMPLES are the files
evaluation/samples/evaluation-0.jsonl of `rlsys eval`, one for each try (docs/paper.md).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rlsys.config import FileData, HubData
from rlsys.data.problems import load_problems
from rlsys.data.report import first_row, guessed_columns
from rlsys.data.row_files import iterate_rows
from rlsys.errors import DataError, UserError
from rlsys.grading.golds import read_gold
from rlsys.types import Problem


class OnHub(NamedTuple):
    """Where a set is on the Hugging Face hub."""

    name: str
    split: str = "test"
    subset: str | None = None


SETS: Final = {
    "deepscaler": OnHub("agentica-org/DeepScaleR-Preview-Dataset", "train"),
    "aime24": OnHub("HuggingFaceH4/aime_2024", "train"),
    "amc22_23": OnHub("AI-MO/aimo-validation-amc", "train"),
    "amc23": OnHub("math-ai/amc23"),
    "math500": OnHub("HuggingFaceH4/MATH-500"),
    "minerva": OnHub("math-ai/minervamath"),
    "olympiadbench": OnHub("math-ai/olympiadbench"),
    "gsm8k": OnHub("openai/gsm8k", subset="main"),
    "gaokao2023en": OnHub("MARIO-Math-Reasoning/Gaokao2023-Math-En", "train"),
}
"""The training set and the evaluation sets of the papers, by the names of their files."""


def main(words: Sequence[str] | None = None) -> None:
    """Run one of the two commands."""
    arguments = _parser().parse_args(words)
    try:
        if arguments.command == "fetch":
            fetch(arguments.out, arguments.only, arguments.source)
        else:
            keep_solved(arguments.problems, arguments.out, arguments.samples)
    except UserError as error:
        raise SystemExit(f"paper_data: {error}") from None


def fetch(out: Path, names: Iterable[str], folder: Path | None) -> None:
    """Write out/NAME.jsonl for every set, from the hub or from files of the same name."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        problems = read_set(name, folder)
        rows = [_row(problem, f"{name}-{i}") for i, problem in enumerate(problems)]
        _write(out / f"{name}.jsonl", rows)


def read_set(name: str, folder: Path | None) -> list[Problem]:
    """Return the problems of a set; columns with other names are recognised as by `rlsys data`.

    Raises DataError if the set cannot be loaded, or if `folder` has no file or several for it.
    """
    source: FileData | HubData
    if folder is None:
        place = SETS[name]
        source = HubData(
            name=place.name, subset=place.subset, split=place.split, skip_unanswered=True
        )
    else:
        source = FileData(path=(str(_file(folder, name)),), skip_unanswered=True)
    row = first_row(source)
    columns = {} if row is None else guessed_columns(source, row.values)
    return load_problems(source.model_copy(update=columns))


def keep_solved(problems: Path, out: Path, samples: Sequence[Path]) -> None:
    """Write the rows of `problems` that were answered right in one of the files of samples."""
    solved = {text for path in samples for text in _solved(path)}
    rows = [row.values for row in iterate_rows(str(problems))]
    _write(out, [row for row in rows if str(row["problem"]).strip() in solved])


def _solved(path: Path) -> Iterator[str]:
    """Yield the problems whose answer at the largest budget is right."""
    for row in iterate_rows(str(path)):
        answers = row.values.get("answers")
        if not isinstance(answers, list):
            raise DataError(
                f"{row.place}: no column 'answers'; give the files evaluation/samples/*.jsonl that "
                "`rlsys eval` wrote"
            )
        if answers[-1]["verdict"] == "right":
            yield str(row.values["problem"])


def _file(folder: Path, name: str) -> Path:
    """Return the one file NAME.* below `folder`; a name may also go on, as in gsm8k_test.jsonl."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = [p for p in files if p.name.partition(".")[0] == name] or [
        p for p in files if p.name.partition(".")[0] == f"{name}_test"
    ]
    if len(found) != 1:
        shown = ", ".join(sorted(map(str, found))) or "none"
        raise DataError(
            f"{folder} must have one file {name}.*, and has {shown}; leave the set out with --only"
        )
    return found[0]


def _row(problem: Problem, name: str) -> dict[str, object]:
    answers = list(read_gold(problem.answer).answers) or [problem.answer]
    return {
        "id": name,
        "problem": problem.text,
        "answer": answers[0] if len(answers) == 1 else answers,
    }


def _write(path: Path, rows: Sequence[object]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path}: {len(lines):,} problems")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    fetched = commands.add_parser("fetch", help="write one file for each set")
    fetched.add_argument("out", type=Path)
    fetched.add_argument("--source", type=Path, help="a folder with files of these sets")
    fetched.add_argument("--only", nargs="+", choices=SETS, default=list(SETS), metavar="NAME")
    solved = commands.add_parser("solved", help="keep the problems that were answered right")
    solved.add_argument("problems", type=Path)
    solved.add_argument("out", type=Path)
    solved.add_argument("samples", type=Path, nargs="+")
    return parser


if __name__ == "__main__":
    main()
