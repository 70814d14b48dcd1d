"""Tables of shared budgets, from the results files of `rlsys eval economics`.

Every agent of a file played the same episodes, so agents are compared episode by episode. The
intervals of the files are 95 % bootstrap intervals over episodes; they do not contain the variation
between training seeds. Where there are several training seeds, a row has the t interval over them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from table_runs import markdown, mean_and_interval

Results = dict[str, Any]
"""A results file: `summary`, `paired` and `allocation` of its agents."""
HEAD = (
    "agent",
    "return",
    "over the warm start",
    "accuracy of N",
    "answered",
    "utilisation",
    "regret",
)
WARM_STARTS: Final = ("warm-eval", "soft-warm-eval", "tiny@warm_start", "trained@0")
"""Names of the warm start; a file has one of them."""
Row = tuple[str, Results, str]
"""Label, results file and agent."""


def read_results(path: Path) -> Results:
    """Return the numbers of a results file."""
    tree: Results = json.loads(path.read_text())
    return tree


def comparison(rows: Sequence[Row], over_runs: Mapping[str, Sequence[Row]]) -> str:
    """Return a table of agents and how much more each returns than the warm start of its file.

    Args:
        rows: label, results file and agent of each row.
        over_runs: further rows with the mean over training runs of one method and its t interval,
            by their label.
    """
    lines = []
    for label, results, agent in rows:
        gain = "" if agent in WARM_STARTS else bounds(_gain(results, agent), "+.2f")
        lines.append([label, bounds(returned(results, agent)), gain, *_shares(results, agent)])
    for label, runs in over_runs.items():
        returns = [returned(results, agent)["mean"] for _, results, agent in runs]
        gains = [_gain(results, agent)["mean"] for _, results, agent in runs]
        mean = [mean_and_interval(returns, ".2f"), mean_and_interval(gains, "+.2f")]
        lines.append([f"{label}: mean and t interval", *mean, *[""] * 4])
    return markdown(HEAD, lines)


def _gain(results: Results, agent: str) -> Mapping[str, float]:
    (warm_start,) = (name for name in WARM_STARTS if name in results["summary"])
    return difference(results, agent, warm_start)


def returned(results: Results, agent: str) -> dict[str, float]:
    """Return mean, low and high of an agent's return."""
    found: dict[str, float] = results["summary"][agent]["total_reward"]
    return found


def difference(results: Results, agent: str, other: str) -> dict[str, float]:
    """Return mean, low and high of the difference of two returns, paired by episode."""
    for pair in results["paired"]:
        found: dict[str, float] = pair["total_reward"]
        if (pair["agent"], pair["over"]) == (agent, other):
            return found
        if (pair["agent"], pair["over"]) == (other, agent):
            return {"mean": -found["mean"], "low": -found["high"], "high": -found["low"]}
    raise KeyError(f"no pair of {agent!r} and {other!r}")


def bounds(number: Mapping[str, float], form: str = ".2f") -> str:
    """Return a mean with its interval."""
    return f"{number['mean']:{form}} [{number['low']:{form}}, {number['high']:{form}}]"


def _shares(results: Results, agent: str) -> list[str]:
    summary = results["summary"][agent]
    names = ("accuracy", "answered", "utilisation", "regret")
    return [f"{summary[name]['mean']:.2f}" for name in names]


def by_type(rows: Sequence[Row], what: str) -> str:
    """Return `tokens` per answer, or the share that is `right`, for each number of summands."""
    _, first, agent = rows[0]
    types = sorted(first["allocation"][agent], key=lambda name: int(name.rpartition("_")[2]))
    lines = []
    for label, results, agent in rows:
        of_type = results["allocation"][agent]
        lines.append([label, *(_cell(of_type[name][what]) for name in types)])
    head = ["tokens per answer" if what == "tokens" else "right answers"]
    return markdown([*head, *(f"{name.rpartition('_')[2]} numbers" for name in types)], lines)


def _cell(number: float | Mapping[str, float]) -> str:
    if isinstance(number, Mapping):
        half = (number["high"] - number["low"]) / 2
        return f"{number['mean']:.1f} ± {half:.1f}"
    return f"{number:.2f}"


def allocators(rows: Sequence[Row]) -> str:
    """Return a table of agents without a trained policy."""
    names = ("accuracy", "accuracy_answered", "answered", "utilisation")
    lines = []
    for label, results, agent in rows:
        summary = results["summary"][agent]
        shares = [f"{summary[name]['mean']:.2f}" for name in names]
        lines.append([label, bounds(returned(results, agent)), *shares, bounds(summary["regret"])])
    head = ("agent", "return", "accuracy of N", "of answered", "answered", "utilisation", "regret")
    return markdown(head, lines)


def soft_mode(rows: Sequence[Row]) -> str:
    """Return a table of agents that may spend more than the budget and pay for it."""
    lines = []
    for label, results, agent in rows:
        gain = "" if agent in WARM_STARTS else bounds(_gain(results, agent), "+.2f")
        summary = results["summary"][agent]
        names = ("accuracy", "utilisation", "over_budget")
        shares = [f"{summary[name]['mean']:.2f}" for name in names]
        overspend = bounds(summary["overspend_tokens"], ".1f")
        lines.append([label, bounds(returned(results, agent)), gain, *shares, overspend])
    head = ("agent", "return", "over the warm start", "accuracy of N", "utilisation")
    return markdown([*head, "episodes over budget", "tokens over budget"], lines)
