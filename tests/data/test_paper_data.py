"""benchmarks/paper_data.py on local files: columns, several golds, and what a model solved."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rlsys.config import FileData
from rlsys.data.problems import load_problems
from rlsys.types import GOLD_SEPARATOR

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("paper_data")


def write(path: Path, rows: Iterable[object]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_sets_are_read_from_local_files_of_any_columns(script: Any, tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    write(source / "train" / "deepscaler.jsonl.gz", [{"problem": "1+1", "answer": "2"}])
    write(source / "gsm8k_test.jsonl", [{"question": "2+2", "answer": "so #### 4", "level": 1}])
    write(
        source / "olympiadbench.jsonl",
        [{"question": "a", "final_answer": ["1/2", "0.5"]}, {"question": "b", "final_answer": []}],
    )
    names = ["deepscaler", "gsm8k", "olympiadbench"]
    script.main(["fetch", str(out), "--source", str(source), "--only", *names])
    assert {name: read(out / f"{name}.jsonl") for name in names} == {
        "deepscaler": [{"id": "deepscaler-0", "problem": "1+1", "answer": "2"}],
        "gsm8k": [{"id": "gsm8k-0", "problem": "2+2", "answer": "4"}],
        "olympiadbench": [
            {"id": "olympiadbench-0", "problem": "a", "answer": ["1/2", "0.5"]},
        ],
    }
    both = FileData(path=tuple(str(out / f"{name}.jsonl") for name in names))
    answers = [problem.answer for problem in load_problems(both)]
    assert answers == ["2", "4", GOLD_SEPARATOR.join(["1/2", "0.5"])]


def test_a_set_without_a_file_is_refused(script: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"one file aime24\.\*, and has none"):
        script.main(["fetch", str(tmp_path), "--source", str(tmp_path), "--only", "aime24"])


def test_problems_that_were_never_right_are_left_out(script: Any, tmp_path: Path) -> None:
    problems = [{"problem": text, "answer": "1"} for text in ("a ", "b", "c")]
    file = write(tmp_path / "problems.jsonl", problems)

    def samples(number: int, **verdicts: str) -> str:
        rows = [
            {"problem": text, "answers": [{"verdict": "right"}, {"verdict": verdict}]}
            for text, verdict in verdicts.items()
        ]
        return str(write(tmp_path / f"try-{number}.jsonl", rows))

    tries = [samples(0, a="wrong", b="wrong", c="wrong"), samples(1, a="right", c="invalid")]
    out = tmp_path / "solved.jsonl"
    script.main(["solved", str(file), str(out), *tries])
    assert read(out) == [problems[0]]
    with pytest.raises(SystemExit, match="no column 'answers'"):
        script.main(["solved", str(file), str(out), str(file)])
