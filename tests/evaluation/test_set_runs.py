"""`rlsys eval sets` with a real engine, killed in the middle: every thought is sampled once."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import START_SECONDS, Command, wait_until

from rlsys.config import ArithmeticData
from rlsys.data.problems import load_problems
from rlsys.evaluation.records import RESULTS, SUMMARY, read_results, result_id

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SETS = {"first": 12, "second": 4}
"""Set and number of problems."""
SAMPLES = 2


def settings(folder: Path) -> dict[str, Any]:
    sets = {}
    for number, (name, size) in enumerate(SETS.items()):
        problems = load_problems(ArithmeticData(size=size, seed=number, held_out=True))
        rows = [json.dumps({"problem": p.text, "answer": p.answer}) for p in problems]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
        path = [str(folder / f"{name}.jsonl")]
        sets[name] = {"source": "file", "path": path, "samples": SAMPLES}
    return {
        "data": {"sets": sets, "prompt": {"max_tokens": 32}},
        "environment": {
            "thought_tokens": 64,
            "budget_count": 4,
            "answer_tokens": 6,
            "closing": "",
            "answer_header": "\n\n**Final Answer**\n\\boxed{",
        },
        "temperature": 1.0,
        "generation": {"kv_cache_mib": 32},
    }


def lines(run_dir: Path) -> int:
    path = run_dir / RESULTS
    return path.read_bytes().count(b"\n") if path.is_file() else 0


@pytest.mark.long
def test_a_killed_evaluation_goes_on_and_gives_the_same_table(tmp_path: Path) -> None:
    config = tmp_path / "sets.yaml"
    config.write_text(yaml.safe_dump(settings(tmp_path)))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    commands = [
        Command(whole, "eval", "sets", config),
        # So many samples of the last set that this is never finished before it is killed.
        Command(killed, "eval", "sets", config, "data.sets.second.samples=1000"),
    ]
    try:
        assert wait_until(lambda: lines(killed) > 0, START_SECONDS), commands[1].output
        commands[1].signal(signal.SIGKILL)
        commands[1].kill_all()
        before = {row.id for row in read_results(killed)}
        commands.append(Command(killed, "eval", "sets", config))
        assert [commands[i].wait() for i in (0, 2)] == [0, 0], commands[2].output
    finally:
        for command in commands:
            command.kill_all()
    ids = [row.id for row in read_results(killed)]
    asked = {
        result_id(name, f"row-{problem}", sample)
        for name, size in SETS.items()
        for problem in range(size)
        for sample in range(SAMPLES)
    }
    assert before
    assert len(ids) == len(set(ids))
    assert set(ids) == asked | before
    assert (killed / SUMMARY).read_text() == (whole / SUMMARY).read_text()
    rows = json.loads((whole / SUMMARY).read_text())
    assert {row["set"] for row in rows} == {*SETS, "average"}
    assert len({row["budget"] for row in rows}) == 5  # four, and their mean
