"""Tables of shared budgets, from the results files of `rlsys eval economics`.

Every agent of a file played the same episodes, so agents are compared episode by episode. The
intervals of the files are 95 % bootstrap intervals over episodes; they do not contain the variation
between training seeds. Where there are several training seeds, a row has the t interval over them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def read_results(path: Path) -> Results:
    """Return the numbers of a results file."""
    tree: Results = json.loads(path.read_text())
    return tree


def comparison(
    rows: Sequence[tuple[str, Results, str]],
    warm_start: str,
    seeds: Sequence[tuple[Results, str]],
) -> str:
    """Return a table of agents and how much more each returns than the warm start.

    Args:
        rows: label, results file and agent of each row.
        warm_start: the agent to compare with; every file has it.
        seeds: training runs of one method, whose mean over seeds is the last row.
    """
    lines = []
    for label, results, agent in rows:
        gain = "" if agent == warm_start else bounds(difference(results, agent, warm_start), "+.2f")
        lines.append([label, bounds(returned(results, agent)), gain, *_shares(results, agent)])
    returns = [returned(results, agent)["mean"] for results, agent in seeds]
    gains = [difference(results, agent, warm_start)["mean"] for results, agent in seeds]
    mean = [mean_and_interval(returns, ".2f"), mean_and_interval(gains, "+.2f")]
    lines.append([f"trained, {len(seeds)} runs: mean and t interval", *mean, *[""] * 4])
    return markdown(HEAD, lines)


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


def by_type(rows: Sequence[tuple[str, Results, str]], what: str) -> str:
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


def allocators(rows: Sequence[tuple[str, Results, str]]) -> str:
    """Return a table of agents without a trained policy."""
    names = ("accuracy", "accuracy_answered", "answered", "utilisation")
    lines = []
    for label, results, agent in rows:
        summary = results["summary"][agent]
        shares = [f"{summary[name]['mean']:.2f}" for name in names]
        lines.append([label, bounds(returned(results, agent)), *shares, bounds(summary["regret"])])
    head = ("agent", "return", "accuracy of N", "of answered", "answered", "utilisation", "regret")
    return markdown(head, lines)
