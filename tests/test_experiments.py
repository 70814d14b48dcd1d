"""Experiments: which runs there are, how they are carried out, and their table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from tiny_run import CONFIG

from rlsys.config.loading import load_config

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FILE: dict[str, Any] = {
    "config": "configs/demo.yaml",
    "seeds": [0, 1],
    "steps": 6,
    "evaluation": {"every": 3, "budgets": [16, 64]},
    "settings": ["algorithm.prior=linear"],
    "baseline": "plain",
    "arms": {"plain": [], "no BRPO + x": ["algorithm.mode=v2only", "environment.revision=null"]},
}
WORDS = [
    *("steps=6", "seed=1", "evaluation.every=3", "evaluation.budgets=[16, 64]"),
    *("checkpoint.every=3", "checkpoint.keep=1", "algorithm.prior=linear"),
]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import experiment_tables
    import experiments
    import side_by_side

    return experiments, experiment_tables, side_by_side


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "trial.yaml"
    path.write_text(yaml.safe_dump({**FILE, **changes}, sort_keys=False))
    return path


def command(*words: object) -> subprocess.CompletedProcess[str]:
    """What `python benchmarks/experiments.py` ends with."""
    line = [sys.executable, str(BENCHMARKS / "experiments.py"), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True)


def test_runs_are_ordered_by_seed_and_later_settings_win(modules: Any, tmp_path: Path) -> None:
    experiments, _, _ = modules
    experiment = load_config(write(tmp_path), [], experiments.Experiment)
    given = ["steps=2", "environment.revision.model.path=x"]
    runs = experiments.runs_of(experiment, Path("out"), overrides=given)
    assert [(run.arm, run.seed, run.run_dir.name) for run in runs] == [
        ("plain", 0, "plain-0"),
        ("no BRPO + x", 0, "no-brpo---x-0"),
        ("plain", 1, "plain-1"),
        ("no BRPO + x", 1, "no-brpo---x-1"),
    ]
    demo = str(BENCHMARKS.parent / "configs" / "demo.yaml")
    assert runs[2].words == [demo, *WORDS, *given]
    # The setting below environment.revision does not concern an arm without revisions.
    own = ["algorithm.mode=v2only", "environment.revision=null"]
    assert runs[3].words == [demo, *WORDS, *own, "steps=2"]
    (chosen,) = experiments.runs_of(experiment, Path("out"), [7], ["plain"])
    assert (chosen.arm, chosen.seed) == ("plain", 7)


def test_wrong_input_is_one_sentence_and_starts_nothing(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], list[str], str]] = [
        ({}, ["--arms", "plane"], "no arm 'plane'; use one of 'plain', 'no BRPO + x'"),
        ({"baseline": "GRPO"}, [], "no arm 'GRPO'"),
        ({"arms": {"plain": ["algorithm.prio=base"]}}, [], "plain, seed 0: unknown key"),
        ({"sedes": [0]}, [], "unknown key 'sedes'"),
    ]
    for changes, words, expected in cases:
        out = tmp_path / "out"
        done = command(write(tmp_path, **changes), out, *words)
        assert (done.returncode, out.exists()) == (2, False), done.stderr
        assert expected in done.stderr


def test_the_files_of_the_repository_are_valid(modules: Any, tmp_path: Path) -> None:
    experiments, _, _ = modules
    for file in sorted((BENCHMARKS / "experiments").glob("*.yaml")):
        experiment = load_config(file, [], experiments.Experiment)
        runs = experiments.runs_of(experiment, tmp_path, seeds=[0])
        assert len(runs) > 2
        assert not any(run.finished() for run in runs), file


def test_jobs_run_side_by_side_and_a_failure_stops_none(modules: Any, tmp_path: Path) -> None:
    _, _, side_by_side = modules
    # Each of the first two waits until the other one has started.
    meet = (
        "import pathlib, sys, time\n"
        "here, there, code = sys.argv[1:]\n"
        "pathlib.Path(here).touch()\n"
        "while not pathlib.Path(there).exists(): time.sleep(0.02)\n"
        "print('met'); sys.exit(int(code))"
    )
    a, b = str(tmp_path / "a.seen"), str(tmp_path / "b.seen")
    jobs = [
        side_by_side.Job(name, tmp_path / name, [sys.executable, "-c", meet, here, there, code])
        for name, here, there, code in (("a", a, b, "3"), ("b", b, a, "0"), ("c", a, b, "0"))
    ]
    seen: list[tuple[str, str]] = []
    counts = side_by_side.carry_out(
        jobs,
        2,
        starts=lambda job: seen.append((job.name, "starts")),
        ended=lambda job, state: seen.append((job.name, state)),
    )
    assert counts == {"failed": 1, "finished": 2}
    assert seen[:2] == [("a", "starts"), ("b", "starts")]
    assert sorted(seen[2:]) == [
        ("a", "failed"),
        ("b", "finished"),
        ("c", "finished"),
        ("c", "starts"),
    ]
    assert jobs[2].log.read_text() == "met\n"


def test_jobs_are_stopped_in_time(
    modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, side_by_side = modules
    monkeypatch.setattr(side_by_side, "GRACE_S", 2.0)
    polite = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
        "time.sleep(600)"
    )
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    jobs = [
        side_by_side.Job(name, tmp_path / name, [sys.executable, "-c", code])
        for name, code in (("polite", polite), ("stubborn", stubborn), ("late", polite))
    ]
    states: dict[str, str] = {}
    before = signal.getsignal(signal.SIGTERM)
    counts = side_by_side.carry_out(
        jobs,
        2,
        seconds=8.0,
        starts=lambda job: None,
        ended=lambda job, state: states.update({job.name: state}),
    )
    assert counts == {"stopped": 3}
    assert states == {"polite": "stopped", "stubborn": "stopped"}
    assert signal.getsignal(signal.SIGTERM) is before


def evaluations(*rows: tuple[int, int, float, float]) -> list[dict[str, float]]:
    return [
        {"step": step, "tokens": tokens, "16": short, "64": long, "thought/length": 10.0 * long}
        for step, tokens, short, long in rows
    ]


RUNS = [
    *(
        {
            "arm": "plain",
            "seed": s,
            "evaluations": evaluations((0, 0, 0.25, 0.5), (6, 4_000_000, end, 1)),
        }
        for s, end in ((0, 0.25), (1, 0.5))
    ),
    *(
        {
            "arm": "short",
            "seed": s,
            "evaluations": evaluations((0, 0, 0.25, 0.5), (6, 2_000_000, end, 0.5)),
        }
        for s, end in ((0, 0.75), (1, 1.0))
    ),
]


def test_the_table_pairs_by_seed(modules: Any) -> None:
    _, tables, _ = modules
    text = tables.experiment_table({"baseline": "plain", "runs": RUNS[:3]})
    assert text.split("\n") == [
        "| after 6 steps | seeds | 16 | 64 | anytime | thought length | tokens, M |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| warm start | 2 | 0.250 ± 0.000 | 0.500 ± 0.000 | 0.375 ± 0.000 | 5.0 ± 0.0 "
        "| 0.00 ± 0.00 |",
        "| plain | 2 | 0.375 ± 1.588 | 1.000 ± 0.000 | 0.688 ± 0.794 | 10.0 ± 0.0 | 4.00 ± 0.00 |",
        "| short | 1 | 0.750 | 0.500 | 0.625 | 5.0 | 2.00 |",
        "| short - plain | 1 | +0.500 | -0.500 | +0.000 | -5.0 | -2.00 |",
    ]


def test_arms_are_compared_after_equally_many_tokens(modules: Any) -> None:
    _, tables, _ = modules
    found = {"baseline": "plain", "compared_at": "tokens", "runs": RUNS}
    lines = tables.experiment_table(found).split("\n")
    assert lines[0].startswith("| after 2,000,000 sampled tokens |")
    # Half of the way to 0.25 and 0.5, from 0.25.
    assert lines[3].startswith("| plain | 2 | 0.312 ± 0.794 | 0.750 ± 0.000 |")
    assert lines[4].startswith("| short | 2 | 0.875 ± 1.588 | 0.500 ± 0.000 |")
    assert lines[5].endswith("| +0.00 ± 0.00 |")


def test_figures_of_a_run(modules: Any, tmp_path: Path) -> None:
    experiments, _, _ = modules
    rows = [
        {"step": 0, "time": 1.0, "evaluation/16": 0.25},
        {"step": 1, "time": 2.0, "time/step": 2.0, "tokens_per_s/generation": 50.0},
        {"step": 2, "time": 3.0, "time/step": 0.5, "tokens_per_s/generation": 80.0},
        {"step": 2, "time": 3.0, "evaluation/16": 0.5},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = experiments.evaluations_of(tmp_path)
    assert found == [{"step": 0, "tokens": 0, "16": 0.25}, {"step": 2, "tokens": 140, "16": 0.5}]
    raw = {"experiment": "x", "runs": [{"arm": "a", "seed": 0, "evaluations": found}] * 2}
    assert json.loads(experiments.compact(raw)) == raw
    assert experiments.compact(raw).count("\n   {") == 4


@pytest.mark.slow
@pytest.mark.long
def test_two_runs_side_by_side(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({**CONFIG, "batch": {"problems": 2, "group_size": 2}}))
    arms = {"uniform": [], "linear": ["algorithm.prior=linear"]}
    file = write(
        tmp_path,
        **{"config": str(config), "steps": 1, "seeds": [0], "settings": [], "arms": arms},
        baseline="uniform",
        evaluation={"problems": 2, "budgets": [8, 64]},
    )
    out = tmp_path / "out"
    done = command(file, out, "--parallel", "2")
    logs = "".join(path.read_text() for path in out.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    found = json.loads((out / "trial.json").read_text())
    assert [(run["arm"], run["seed"]) for run in found["runs"]] == [("uniform", 0), ("linear", 0)]
    assert found["machines"][0]["versions"]["ray"]
    for run in found["runs"]:
        assert [e["step"] for e in run["evaluations"]] == [0, 1]
        assert run["evaluations"][1]["tokens"] > 0
    again = command(file, out)
    assert again.returncode == 0, again.stderr
    assert "finished" not in again.stdout  # both were skipped
    assert "| linear - uniform | 1 |" in again.stdout
