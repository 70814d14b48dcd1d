"""The page of `rlsys report`: numbers, intervals, episodes as text, and no request to anywhere."""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from evaluated import sample_row, write_results
from recorded_run import episode, write_lines, write_run
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.errors import RunFolderError
from rlsys.reporting.metrics_file import EvaluationRecord
from rlsys.reporting.page import document
from rlsys.reporting.page.charts import CHARTS, line_chart, time_chart
from rlsys.reporting.page.episodes import shown, thought_pieces
from rlsys.reporting.page.evaluations import (
    anytime_chart,
    estimates,
    paired_difference,
    problem_scores,
    with_interval,
)
from rlsys.reporting.page.run_files import evenly, read_runs

PLOTLY = "/* plotly */"
HOSTILE = "</script><script>alert(1)</script><img src=http://evil.test/x onerror=alert(2)>"


class Elements(HTMLParser):
    """The elements of a page, and the text of its scripts that hold data."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: dict[str, Any] = {}
        self._key: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        holds_data = attributes.get("type") == "application/json"
        self._key = attributes["id"] if tag == "script" and holds_data else None

    def handle_data(self, data: str) -> None:
        if self._key is not None:
            self.data[self._key] = json.loads(data)
            self._key = None


def parse(page: str) -> Elements:
    elements = Elements()
    elements.feed(page)
    return elements


def chart(key: str) -> Any:
    return next(c for c in CHARTS if c.key == key)


def test_the_page_has_the_numbers_of_the_run(tmp_path: Path) -> None:
    page = document.page(read_runs([write_run(tmp_path / "run")]), PLOTLY)
    text = unescape(re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", page, flags=re.S))
    for words in (
        "step 2 of 3",
        "stopped",
        "truncation, no signal",
        "0.750",  # the last anytime mean
        "before: 0.250",
        "1: no token of it is trained",
        "brpo",
    ):
        assert words in text, words
    data = parse(page).data
    reward = data["figure-reward"]["data"]
    assert [(t["name"], t["y"]) for t in reward] == [
        ("score/2", [0.25, 0.5]),
        ("score/4", [0.5, 0.5]),
    ]
    assert data["figure-entropy"]["data"][0]["y"] == [0.125, None]
    assert [t["y"][0] for t in data["figure-time-0"]["data"]] == [1.0, 2.0, 0.5, 0.5]
    assert list(data["episodes-data"]["recorded"]) == ["evaluation-2", "evaluation-0", "step-1"]


def test_the_page_asks_no_other_host_and_runs_only_its_own_scripts(tmp_path: Path) -> None:
    page = document.page(read_runs([write_run(tmp_path / "run")]), PLOTLY)
    elements = parse(page).tags
    addresses = [a[k] for _, a in elements for k in ("src", "href", "action", "data") if k in a]
    assert addresses and all(str(address).startswith("#") for address in addresses)
    assert not {tag for tag, _ in elements} & {"link", "iframe", "img", "object", "embed"}
    assert "@import" not in page and "url(" not in page
    (policy,) = [str(a["content"]) for _, a in elements if a.get("http-equiv")]
    assert "default-src 'none'" in policy
    assert policy.count("sha256-") == 2 and "'unsafe-inline'" not in policy.split("style-src")[0]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    episodes = [episode(g, (1.0, 1.0), problem=HOSTILE, thought=HOSTILE) for g in range(4)]
    run = write_run(tmp_path / "run", name=f"'{HOSTILE}'", last=episodes)
    page = document.page(read_runs([run]), PLOTLY)
    assert "<script>alert" not in page and "<img" not in page
    elements = parse(page)
    scripts = [a for tag, a in elements.tags if tag == "script" and not a]
    assert len(scripts) == 2, "only plotly and the script of the page run"
    (first, *_) = elements.data["episodes-data"][HOSTILE]["evaluation-2"]
    assert first["title"] == HOSTILE


def test_several_runs_share_charts_and_are_compared_problem_by_problem(tmp_path: Path) -> None:
    better = [episode(group, (1.0, 1.0)) for group in range(4)]
    runs = read_runs([write_run(tmp_path / "a", "a"), write_run(tmp_path / "b", "b", better)])
    reward = line_chart(chart("reward"), runs)
    assert reward is not None
    assert [(t["name"], t.get("showlegend", True)) for t in reward["data"]] == [
        *(("a", True), ("a: score/4", False), ("b", True), ("b: score/4", False)),
        *(("score/2", True), ("score/4", True)),
    ]
    assert "b − a" in document.page(runs, PLOTLY)
    scores = [problem_scores(run.samples["evaluation-2"]) for run in runs]
    difference = paired_difference(scores[0]["2"], scores[1]["2"])
    assert difference is not None and difference.mean == 0.5
    assert difference.interval == (0.0, 1.0)


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = read_runs([write_run(tmp_path / "a"), write_run(tmp_path / "b")])
    assert [run.name for run in runs] == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_an_interval_needs_the_problems_behind_the_mean() -> None:
    scores = {f"p{i}": float(i % 2) for i in range(100)}
    interval = with_interval(0.5, scores).interval
    assert interval is not None
    # The normal approximation: 0.5 +- 1.96 * 0.5 / sqrt(100).
    assert interval == pytest.approx((0.402, 0.598), abs=0.02)
    assert with_interval(0.6, scores).interval is None, (
        "the file lacks some episodes of the evaluation"
    )
    assert with_interval(1.0, {"p": 1.0}).interval is None
    assert paired_difference({"p": 1.0}, {"p": 0.0}) is None


def test_intervals_that_the_run_reported_come_first(tmp_path: Path) -> None:
    (run,) = read_runs([write_run(tmp_path / "run")])
    numbers = {"2": 0.5, "4": 1.0, "low/2": 0.4, "high/2": 0.7}
    found = estimates(run, EvaluationRecord(2, numbers))
    assert (found["2"].interval, found["4"].interval) == ((0.4, 0.7), (1.0, 1.0))


def test_the_anytime_curve_shows_before_and_after_with_bars(tmp_path: Path) -> None:
    (run,) = read_runs([write_run(tmp_path / "run")])
    figure = anytime_chart([run])
    assert figure is not None
    before, after = figure["data"]
    assert (before["x"], before["y"], before["line"]["dash"]) == ([2, 4], [0.0, 0.5], "dot")
    assert after["y"] == [0.5, 1.0]
    assert after["error_y"]["arrayminus"] == [0.5, 0.0]
    assert anytime_chart([]) is None


def test_a_logarithmic_axis_leaves_a_gap_for_zero(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [{"step": s, "gap/mean": s * 0.1} for s in (0, 1)])
    figure = line_chart(chart("mismatch"), read_runs([tmp_path]))
    assert figure is not None and figure["data"][0]["y"] == [None, 0.1]


def test_marks_stand_where_the_budgets_end_the_thought() -> None:
    whole = episode(0, (0.0, 1.0))
    assert thought_pieces(whole) == ["aa bb ", {"cut": "2"}, "cc dd ", {"cut": "4"}]
    # A thought that ends by itself after 3 tokens is not cut at 4.
    ended = episode(0, (0.0, 1.0), thought="aa bb cc ", thought_tokens=3)
    ended["answers"][1]["cut"] = 3
    assert thought_pieces(ended) == ["aa bb ", {"cut": "2"}, "cc "]
    # One that ends by itself at the smaller budget is not cut there either.
    short = episode(0, (0.0, 1.0), thought="aa bb ", thought_tokens=2)
    short["answers"][1]["cut"] = 2
    assert thought_pieces(short) == ["aa bb "]
    for answer in whole["answers"]:
        del answer["cut_characters"]
    assert thought_pieces(whole) == ["aa bb ", {"cut": "2"}, "cc dd ", {"cut": "4"}]


def test_episodes_of_every_environment_are_shown() -> None:
    turn = {"prompt": "1+1=", "reply": "2", "tokens": 3, "verdict": "right", "reward": 1.0}
    dialogue = shown({"group": 0, "seed": 7, "return": 1.5, "turns": [turn]})
    assert dialogue["title"] == "seed 7"
    assert dialogue["rows"] == [["1", "1+1=", "2", "3", "right", "1"]]
    answer = {"kept": 5, "text": "2}", "verdict": "right", "reflections": 1}
    revised = shown({"problem": "p", "thought": "t", "thought_tokens": 9, "revision": answer})
    assert revised["rows"] == [["revision", "5", "2}", "right", "1"]]
    segments = [{"kind": "thought", "text": "so"}]
    plain = shown({"problem": "p", "segments": segments, "scores": [1.0], "verdicts": ["right"]})
    assert plain["blocks"] == [{"label": "thought", "pieces": ["so"]}]
    assert ["colour", "red"] in shown({"colour": "red"})["facts"]


def test_time_that_no_phase_names_is_other(tmp_path: Path) -> None:
    (run,) = read_runs([write_run(tmp_path / "run")])
    figure = time_chart(run)
    assert figure is not None and figure["layout"]["barmode"] == "stack"
    assert [t["name"] for t in figure["data"]] == [
        "generation (1.00 s)",
        "training (2.00 s)",
        "sync (0.50 s)",
        "other (0.50 s)",
    ]


def test_a_long_run_shows_files_with_equal_distances() -> None:
    assert evenly(range(101), 5) == [0, 25, 50, 75, 100]
    assert evenly([1, 2], 5) == [1, 2]


def test_damaged_files_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "config.yaml").write_text("{[", encoding="utf-8")
    with (run / "samples" / "evaluation-2.jsonl").open("a") as file:
        file.write('{"group": 4, "prob')
    (read,) = read_runs([run])
    assert (read.name, len(read.samples["evaluation-2"])) == ("run", 4)
    assert read.evaluations[0] == EvaluationRecord(
        0, {"2": 0.0, "4": 0.5, "mean": 0.25, "thought/length": 4.0}
    )


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl"):
        read_runs([tmp_path])


def test_the_command_writes_the_page_into_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "plotly_script", lambda: PLOTLY)
    run = write_run(tmp_path / "run")
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 0, result.output
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_without_plotly_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    result = CliRunner().invoke(app, ["report", str(write_run(tmp_path / "run"))])
    assert result.exit_code == 2
    assert "pip install 'rlsys[report]'" in result.stderr


def test_evaluations_on_sets_have_a_curve_for_each_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "plotly_script", lambda: PLOTLY)
    rows = [
        sample_row("</script>", f"p{i}", 0, [(2, i, "1"), (4, 1, "1")], thought=3) for i in (0, 1)
    ]
    first, second = (write_results(tmp_path / name, rows) for name in ("a", "b"))
    run = write_run(tmp_path / "run")
    document.write_page([run, first, second], tmp_path / "page.html")
    elements = parse((tmp_path / "page.html").read_text(encoding="utf-8"))
    band, line, *others = elements.data["figure-set-0"]["data"]
    assert (line["x"], line["y"], line["name"]) == ([2, 4], [0.5, 1.0], str(first))
    assert (band["x"], band["y"]) == ([2, 4, 4, 2], [1.0, 1.0, 1.0, 0.0])
    assert others[1]["name"] == str(second)
    assert "figure-anytime" in elements.data  # the run is on the same page
    assert len([tag for tag, _ in elements.tags if tag == "script"]) == len(elements.data) + 2


def test_plotly_takes_the_figures(tmp_path: Path) -> None:
    objects = pytest.importorskip("plotly.graph_objects", reason="needs the extra report")
    runs = read_runs([write_run(tmp_path / "run")])
    figures = [anytime_chart(runs), time_chart(runs[0]), *(line_chart(c, runs) for c in CHARTS)]
    for figure in figures:
        if figure is not None:
            objects.Figure(figure)
