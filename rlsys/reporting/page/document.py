"""The page as one HTML document.

Nothing of it is loaded from anywhere: the scripts and the style are part of the file, and a content
security policy forbids every request. The policy allows the scripts of this page by their hashes,
so text that a model wrote cannot become a script, even if it were not escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlsys.errors import UserError
from rlsys.reporting.page.charts import CHARTS, TIME_CHARTS, Figure, line_chart, time_chart
from rlsys.reporting.page.episodes import EPISODES, browsable
from rlsys.reporting.page.evaluations import anytime_chart, progress_chart
from rlsys.reporting.page.run_files import RunFiles, read_runs
from rlsys.reporting.page.sets import SetsFiles, holds_sets, read_sets, set_charts, sets_table
from rlsys.reporting.page.summary import evaluation_table, ledger_table, settings_table, tiles


def write_page(folders: Sequence[Path], output: Path) -> None:
    """Write the page of the runs, and of the evaluations of `rlsys eval sets`, in `folders`.

    Raises RunFolderError for a folder without either, UserError if plotly is not installed.
    """
    evaluations = read_sets([folder for folder in folders if holds_sets(folder)])
    runs = read_runs([folder for folder in folders if not holds_sets(folder)])
    text = page(runs, plotly_script(), evaluations)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8", errors="replace")


def plotly_script() -> str:
    """Return plotly's JavaScript, which the Python package contains."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UserError(
            "`rlsys report` draws with plotly, which is not installed; run "
            "`pip install 'rlsys[report]'` or `pip install plotly`"
        ) from error
    return str(get_plotlyjs())


def page(runs: Sequence[RunFiles], plotly: str, evaluations: Sequence[SetsFiles] = ()) -> str:
    """Return the HTML document; `plotly` is the text of plotly's script."""
    own = files("rlsys.reporting.page")
    script, style = (own.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("js", "css"))
    names = [run.name for run in runs] + [found.name for found in evaluations]
    title = escape(", ".join(names))
    sections = [
        _section("overview", "Overview", tiles(runs) + settings_table(runs) if runs else ""),
        _evaluation(runs),
        _sets(evaluations),
        _section("training", "Training", _grid(_training_charts(runs))),
        _section("time", "Time per step", _grid(_time_charts(runs))),
        _section("ledger", "Ledger", ledger_table(runs)),
        _episodes(runs),
    ]
    body = "".join(text for _, _, text in sections if text)
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name, text in sections if text)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(plotly, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · rlsys report</title>
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><nav>{links}</nav></header>
<main>{body}</main>
{_data("episodes-data", browsable(runs))}
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""


def _policy(*scripts: str) -> str:
    digests = [hashlib.sha256(script.encode("utf-8", "replace")).digest() for script in scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    # plotly writes its style into the page, and draws downloads as data and blobs.
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; form-action 'none'; base-uri 'none'"
    )


def _data(key: str, value: Any) -> str:
    """Return a script element that holds data; `<` is written so that nothing can end it early."""
    text = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{key}">{text}</script>'


def _section(key: str, title: str, content: str) -> tuple[str, str, str]:
    text = f'<section id="{key}"><h2>{title}</h2>{content}</section>' if content else ""
    return key, title, text


def _evaluation(runs: Sequence[RunFiles]) -> tuple[str, str, str]:
    note = (
        "Accuracy with the thought cut at the budget. Dotted: before training. Faint: during "
        "training. Solid: the last evaluation, with 95 % bootstrap intervals over problems."
    )
    progress = progress_chart(runs)
    charts = [
        _card("anytime", "Anytime curve", note, anytime_chart(runs), wide=progress is None),
        _card("progress", "Accuracy over steps", "Mean over budgets.", progress),
    ]
    return _section("evaluation", "Evaluation", _grid(charts) + evaluation_table(runs))


def _sets(evaluations: Sequence[SetsFiles]) -> tuple[str, str, str]:
    note = "Accuracy by budget; the band is a 95 % bootstrap interval over problems."
    charts = [
        _card(f"set-{number}", escape(name), note, figure)
        for number, (name, figure) in enumerate(set_charts(evaluations))
    ]
    return _section("sets", "Sets", _grid(charts) + sets_table(evaluations))


def _training_charts(runs: Sequence[RunFiles]) -> list[str]:
    return [_card(c.key, c.title, c.note, line_chart(c, runs)) for c in CHARTS]


def _time_charts(runs: Sequence[RunFiles]) -> list[str]:
    note = (
        "Seconds of every step; the mean is in the legend. Generation is the time in which the "
        "learner waited for groups, because engines also sample while the learner trains."
    )
    return [
        _card(f"time-{number}", escape(run.name), note, time_chart(run), wide=len(runs) == 1)
        for number, run in enumerate(runs)
    ] + [_card(c.key, c.title, c.note, line_chart(c, runs)) for c in TIME_CHARTS]


def _card(key: str, title: str, note: str, figure: Figure | None, *, wide: bool = False) -> str:
    if figure is None:
        return ""
    kind = "card wide" if wide else "card"
    return (
        f'<figure class="{kind}"><figcaption><b>{title}</b> {note}</figcaption>'
        f'<div class="chart" data-figure="figure-{key}"></div>'
        f"{_data(f'figure-{key}', figure)}</figure>"
    )


def _grid(cards: Sequence[str]) -> str:
    content = "".join(cards)
    return f'<div class="grid">{content}</div>' if content else ""


def _episodes(runs: Sequence[RunFiles]) -> tuple[str, str, str]:
    if not any(run.samples for run in runs):
        return _section("episodes", "Episodes", "")
    content = f"""
<p class="note">The first {EPISODES} episodes of a file in samples/. A mark in a thought shows where
a budget ended it.</p>
<div class="controls">
<label>run <select id="episode-run"></select></label>
<label>file <select id="episode-file"></select></label>
<label>show <select id="episode-filter"><option value="all">all</option>
<option value="wrong">with a wrong answer</option>
<option value="late">wrong at the end</option></select></label>
<label>search <input id="episode-search" type="search"></label>
</div>
<div class="browser"><ol id="episode-list"></ol><article id="episode"></article></div>"""
    return _section("episodes", "Episodes", content)
