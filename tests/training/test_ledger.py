"""The ledger: one fate for every admitted group, also after a run was cut off and resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from finished_groups import report
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.errors import RunFolderError
from rlsys.reporting.ledger_file import LEDGER, LedgerSink, read_ledger
from rlsys.training.ledger import (
    LOST,
    NO_TOKENS,
    NOT_FINITE,
    GroupFate,
    fate_metrics,
    group_fates,
    summarise,
)
from rlsys.types import GroupReport


def lost(index: int) -> GroupReport:
    """Of a group whose episodes were all lost."""
    empty = replace(report(index, 0), scores_G=np.zeros(0, np.float32), numbers={}, sizes=())
    return replace(empty, versions=None)


def of_step(step: int, per_step: int = 2, admitted: int | None = None) -> list[GroupFate]:
    first = (step - 1) * per_step
    reports = [report(index, step - 1) for index in range(first, first + per_step)]
    admitted = first + per_step if admitted is None else admitted
    return group_fates(reports, step=step, applied=True, admitted=admitted)


def test_a_group_is_trained_or_dropped_for_a_reason() -> None:
    reports = [report(4, 1), lost(5), replace(report(6, 2), sizes=((30, 0), (30, 0)))]
    trained, gone, empty = group_fates(reports, step=3, applied=True, admitted=9)
    assert trained == GroupFate(
        step=3,
        group=4,
        problem="",
        fate="trained",
        reason=None,
        sampled=(1, 1),
        tokens=40,
        length=15.0,
        score=0.625,
        admitted=9,
    )
    assert (gone.fate, gone.reason, gone.tokens, gone.score) == ("dropped", LOST, 0, None)
    assert (gone.sampled, gone.length) == (None, None)
    assert (empty.fate, empty.reason) == ("dropped", NO_TOKENS)
    skipped = group_fates(reports[:1], step=3, applied=False, admitted=9)
    assert [(fate.fate, fate.reason, fate.tokens) for fate in skipped] == [
        ("dropped", NOT_FINITE, 0)
    ]
    assert fate_metrics([trained, gone, empty]) == {
        "groups/trained": 1,
        "groups/dropped": 2,
        "groups/in_flight": 2,
    }


def test_lengths_are_those_of_responses_where_there_are_no_thoughts() -> None:
    numbers = {"response/length": np.array([4, 6], np.float32)}
    (fate,) = group_fates(
        [replace(report(0, 0), numbers=numbers)], step=1, applied=True, admitted=1
    )
    assert fate.length == 5.0


def test_missing_and_doubled_groups_are_found() -> None:
    whole = summarise(of_step(1) + of_step(2, admitted=7))
    assert whole.whole
    assert (whole.steps, whole.trained, whole.dropped) == (2, 4, {})
    assert whole.in_flight == range(4, 7)
    assert summarise([]).whole
    broken = summarise(of_step(1)[:1] + of_step(3) + of_step(3)[1:])
    assert not broken.whole
    assert (broken.missing, broken.doubled) == ([1, 2, 3], [5])


def test_a_resumed_run_drops_the_lines_of_steps_that_are_trained_again(tmp_path: Path) -> None:
    first = LedgerSink(tmp_path)
    for step in (1, 2, 3):
        first.write(of_step(step))
    first.close()
    with (tmp_path / LEDGER).open("a") as file:
        file.write('{"step": 4, "gro')  # killed while it wrote
    second = LedgerSink(tmp_path, resumed_step=2)
    assert read_ledger(tmp_path) == of_step(1) + of_step(2)
    second.write(of_step(3, admitted=9))
    second.close()
    summary = summarise(read_ledger(tmp_path))
    assert (summary.whole, summary.trained, summary.in_flight) == (True, 6, range(6, 9))
    LedgerSink(tmp_path).close()
    assert read_ledger(tmp_path) == []  # a new run in the same folder starts from nothing


def test_the_command_counts_fates_and_names_what_is_lost(tmp_path: Path) -> None:
    sink = LedgerSink(tmp_path)
    sink.write(of_step(1))
    sink.write(group_fates([report(2, 1), lost(3)], step=2, applied=True, admitted=6))
    done = CliRunner().invoke(app, ["ledger", str(tmp_path)])
    assert done.exit_code == 0
    assert done.output.splitlines()[:5] == [
        "steps      2",
        "trained    3",
        "dropped    1",
        f"           1: {LOST}",
        "in flight  2 (from group 4 on)",
    ]
    sink.write(of_step(4))
    broken = CliRunner().invoke(app, ["ledger", str(tmp_path)])
    assert broken.exit_code == 1
    assert "missing    4, 5" in broken.output


def test_a_folder_without_a_readable_ledger_is_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="does not exist"):
        read_ledger(tmp_path)
    (tmp_path / LEDGER).write_text(json.dumps({"step": 1, "group": "one"}) + "\n")
    with pytest.raises(RunFolderError, match="no fate of a group"):
        read_ledger(tmp_path)
