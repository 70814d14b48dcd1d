"""Everything a run tells: on the screen, in its folder, and to the services of reporting.sinks.

    runs/NAME/config.yaml            the resolved configuration
              metrics.jsonl          a row a step and a row an evaluation
              ledger.jsonl           a row a group of every step: trained, or dropped and why
              tensorboard/           the same for TensorBoard
              samples/*-N.jsonl      episodes of step N or of an evaluation in words, one a line

Only files and the console are touched here; nothing knows of Ray.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Self

import yaml
from rich.console import Console, RenderableType
from rich.live import Live

from rlsys.config.reporting import ReportingConfig
from rlsys.environments.report import LOST
from rlsys.reporting.ledger_file import LedgerSink
from rlsys.reporting.live_view import live_block, plain_line, scores
from rlsys.reporting.metrics_file import (
    EVALUATION,
    METRICS,
    EvaluationRecord,
    MetricsSink,
    length_ratios,
    read_evaluations,
)
from rlsys.reporting.sinks.opening import Sinks, check_sinks
from rlsys.reporting.tables import evaluation_table
from rlsys.training.durable import naming, replace_file
from rlsys.training.ledger import GroupFate
from rlsys.training.run_folder import CONFIG, SAMPLES

OWN_SAMPLES = re.compile(r"(?:step|evaluation)-([0-9]+)\.jsonl")


class RunReporter:
    """Reports one run of `total_steps` steps into `run_dir` and onto `console`."""

    def __init__(
        self,
        run_dir: Path,
        total_steps: int,
        console: Console,
        reference: EvaluationRecord | None = None,
        reporting: ReportingConfig | None = None,
    ) -> None:
        """Token ratios are taken against `reference`, else against the run's first evaluation.

        Raises ConfigError if a service of `reporting` needs a library that is not installed.
        """
        self._reporting = reporting or ReportingConfig()
        check_sinks(self._reporting)
        self._reference = reference
        self._run_dir = run_dir
        self._total = total_steps
        self._console = console
        self._live: Live | None = None
        self._metrics: MetricsSink | None = None
        self._sinks: Sinks | None = None
        self._ledger: LedgerSink | None = None
        self._config_yaml = ""
        self._resumed_step = 0

    def start(
        self, resolved_config_yaml: str, batch_table: RenderableType, resumed_step: int = 0
    ) -> None:
        """Show what a step holds, and remember what the run folder is to be opened with.

        `resumed_step` is the last step that is kept of an earlier run, 0 for a fresh one; what is
        recorded of later steps is dropped. Files are opened for the first record, so that a run
        that is refused before leaves nothing behind.
        """
        self._config_yaml = resolved_config_yaml
        self._resumed_step = resumed_step
        self._console.print(batch_table)

    def rewind(self, step: int) -> None:
        """Drop what is recorded of the steps after `step`: they are trained again."""
        self._close_files()
        self._resumed_step = step
        if self._sinks is not None:
            self._sinks.rewind(step)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record and show the metrics of step `step` (from 1)."""
        self._write(step, metrics)
        if not self._console.is_terminal:
            self._print(plain_line(step, self._total, metrics))
            return
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        self._live.update(live_block(step, self._total, metrics), refresh=True)

    def evaluation(
        self,
        step: int,
        numbers: Mapping[str, float],
        episodes: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Record the means of an evaluation after `step` steps; `score/BUDGET` make the curve.

        Token ratios are added where there are lengths. `episodes` are written in words to
        samples/evaluation-`step`.jsonl.
        """
        row = {f"{EVALUATION}{n.removeprefix('score/')}": v for n, v in numbers.items()}
        curve = scores(numbers)
        if curve:
            row[f"{EVALUATION}mean"] = fmean(curve.values())
        self._open()
        reference = self._reference_numbers(numbers)
        row |= {f"{EVALUATION}{n}": v for n, v in length_ratios(numbers, reference).items()}
        self._write(step, row)
        self._write_samples(f"evaluation-{step}", episodes)
        if self._sinks is not None:
            self._sinks.episodes(step, episodes)
        self._print(f"evaluation after step {step}: {_evaluation_line(numbers)}")

    def episodes(self, step: int, episodes: Sequence[Mapping[str, Any]]) -> None:
        """Write episodes in words to samples/step-`step`.jsonl."""
        self._open()
        self._write_samples(f"step-{step}", episodes)

    def fates(self, fates: Sequence[GroupFate]) -> None:
        """Write the fates of the groups of a step to ledger.jsonl."""
        self._open()
        assert self._ledger is not None
        self._ledger.write(fates)

    def message(self, text: str) -> None:
        """Tell the user one sentence."""
        self._print(text)

    def final_table(self) -> None:
        """Show the first and the last evaluation of the run, those before a restart included.

        Nothing if there was none.
        """
        self._stop_live()
        found = read_evaluations(self._run_dir / METRICS)
        if len(found) == 1:
            self._console.print(evaluation_table({f"step {found[0].step}": found[0]}))
        elif found:
            self._console.print(evaluation_table({"before": found[0], "after": found[-1]}))

    def close(self) -> None:
        """End the live view and close the files and the sinks; safe to call twice."""
        self._close_files()
        if self._sinks is not None:
            self._sinks.close()
            self._sinks = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _reference_numbers(self, numbers: Mapping[str, float]) -> Mapping[str, float]:
        if self._reference is not None:
            return self._reference.numbers
        found = read_evaluations(self._run_dir / METRICS)
        return found[0].numbers if found else numbers

    def _write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write a row into the run folder first, because services may fail."""
        self._open()
        assert self._metrics is not None and self._sinks is not None
        self._metrics.write(step, numbers)
        self._sinks.numbers(step, numbers)

    def _open(self) -> None:
        if self._metrics is None:
            with naming(self._run_dir):
                self._run_dir.mkdir(parents=True, exist_ok=True)
            _write_if_new(self._run_dir / CONFIG, self._config_yaml)
            with naming(self._run_dir / SAMPLES):
                _drop_samples_after(self._run_dir / SAMPLES, self._resumed_step)
            self._metrics = MetricsSink(self._run_dir, self._resumed_step)
            self._ledger = LedgerSink(self._run_dir, self._resumed_step)
            self._open_sinks()

    def _open_sinks(self) -> None:
        if self._sinks is None:
            settings = yaml.safe_load(self._config_yaml) or {}
            self._sinks = Sinks(
                *(self._reporting, self._run_dir, settings, self._resumed_step, self.message)
            )

    def _write_samples(self, name: str, episodes: Sequence[Mapping[str, Any]]) -> None:
        path = self._run_dir / SAMPLES / f"{name}.jsonl"
        text = "".join(f"{_json_line(episode)}\n" for episode in episodes)
        with naming(path):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def _print(self, text: str) -> None:
        # Lines are for grep: never wrapped at the width of a console that is no terminal.
        # Half of a surrogate pair, which a model or a file may produce, cannot be printed.
        printable = text.encode("utf-8", "replace").decode("utf-8")
        self._console.print(printable, markup=False, highlight=False, soft_wrap=True)

    def _close_files(self) -> None:
        self._stop_live()
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _evaluation_line(numbers: Mapping[str, float]) -> str:
    curve = scores(numbers)
    if curve:
        shown = ", ".join(f"{budget}: {value:.3f}" for budget, value in curve.items())
        return f"{fmean(curve.values()):.3f} ({shown})"
    words = [f"{name} {value:.3f}" for name, value in numbers.items() if "/" not in name]
    if lost := numbers.get(LOST, 0.0):
        words.append(f"{LOST} {lost:.3f}")
    return ", ".join(words)


def _write_if_new(path: Path, text: str) -> None:
    """Write a file, unless it holds the text already: what is not written cannot be lost."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    replace_file(path, text)


def _json_line(episode: Mapping[str, Any]) -> str:
    """An episode as JSON, readable in every language unless it holds half of a surrogate pair."""
    line = json.dumps(episode, ensure_ascii=False)
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(episode)
    return line


def _drop_samples_after(folder: Path, step: int) -> None:
    """Delete the samples of later steps, all of them for step 0; other files are the user's."""
    for path in folder.glob("*.jsonl"):
        match = OWN_SAMPLES.fullmatch(path.name)
        if match and (int(match[1]) > step or step == 0):
            path.unlink()
