"""Seeded random faults over whole runs: all steps, one fate per group, the same weights.

The gate runs a few faults; `make chaos` runs one seed of every kind of run. benchmarks/chaos.py
runs many seeds and measures how long recoveries take.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from commands import Command
from faulty_runs import Chaos, Verdict, compare
from random_faults import CONFIG, MODES, STEPS, Fault, Kind, Moment, Target, draw

GROUPS = STEPS * CONFIG["batch"]["problems"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the configuration, the runs without faults, and the runs with faults."""
    folder = tmp_path_factory.mktemp("chaos")
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    return folder


def undisturbed(folder: Path, mode: str) -> Path:
    """Return a finished run of this kind without faults; it is run once."""
    run_dir = folder / f"undisturbed-{list(MODES).index(mode)}"
    if not run_dir.exists():
        command = Command(run_dir, "train", folder / "run.yaml", *MODES[mode])
        try:
            assert command.wait() == 0, command.output
        finally:
            command.kill_all()
    return run_dir


def survive(folder: Path, mode: str, faults: list[Fault]) -> Verdict:
    """Run with faults to the end; nothing may be lost."""
    chaos = Chaos(
        folder / f"faults-{mode.replace(' ', '-')}-{len(faults)}", folder / "run.yaml", MODES[mode]
    )
    chaos.to_the_end(faults)
    assert chaos.observed
    verdict = compare(chaos.run_dir, undisturbed(folder, mode))
    assert verdict.ledger.whole
    assert (verdict.ledger.trained, verdict.ledger.dropped) == (GROUPS, {})
    assert verdict.steps == list(range(1, STEPS + 1))
    assert verdict.same_problems
    return verdict


def test_the_draw_is_a_function_of_the_seed() -> None:
    drawn = [draw(seed, 4) for seed in range(200)]
    assert drawn == [draw(seed, 4) for seed in range(200)]
    faults = [fault for of_seed in drawn for fault in of_seed]
    assert {fault.kind for fault in faults} == set(Kind)
    assert {fault.target for fault in faults} == set(Target)
    assert {fault.moment for fault in faults} == set(Moment)
    assert all(of_seed == sorted(of_seed, key=lambda fault: fault.step) for of_seed in drawn)
    assert all(1 <= fault.step < STEPS - 4 for fault in faults)
    # What a run must not survive by itself is never drawn.
    assert not [f for f in faults if (f.kind, f.target) == (Kind.STOP, Target.DRIVER)]
    assert all(sum(f.kind is Kind.CORRUPT for f in of_seed) <= 1 for of_seed in drawn)
    assert all(of_seed[0].moment is not Moment.RECOVERY for of_seed in drawn)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_few_faults_change_nothing(folder: Path) -> None:
    faults = [
        Fault(kind=Kind.PAUSE, target=Target.ENGINE, step=2, moment=Moment.SYNC, pause_s=1.0),
        Fault(kind=Kind.KILL, target=Target.LEARNER, step=5, moment=Moment.STEP),
        Fault(kind=Kind.KILL, target=Target.ENVIRONMENT, step=9, moment=Moment.STEP, delay_s=0.2),
    ]
    verdict = survive(folder, "synchronous", faults)
    assert verdict.same_groups
    assert verdict.same_export
    assert verdict.length_p == 1.0


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("mode", "seed"), [(m, s) for s, m in enumerate(MODES)])
def test_random_faults(folder: Path, mode: str, seed: int) -> None:
    verdict = survive(folder, mode, draw(seed, 4))
    if mode == "staleness 1":
        # Which version samples a group depends on time, so lengths are equal in distribution only.
        assert verdict.length_p > 0.001
    else:
        assert verdict.same_groups
        assert verdict.same_export
