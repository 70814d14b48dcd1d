"""Plots of a benchmark, drawn from its results.json alone.

comparison          return, accuracy and regret per agent, with intervals
utilisation         share of the budget spent
pacing              tokens spent after each answer
tokens_per_problem  how long the answers are
allocation          tokens by type of question
reward_over_steps   reward of the first, second, … answer
reward_by_budget    reward against what was left of the budget
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rlsys.environments.economics.benchmark.plot_parts import (
    GREY,
    STYLE,
    PlotData,
    draw_intervals,
    draw_line,
    label_ends,
    new_figure,
    percent,
    titled,
)
from rlsys.environments.economics.benchmark.results import EpisodeResult, read_results
from rlsys.environments.economics.benchmark.summary import HIDDEN, natural
from rlsys.estimates import bootstrap_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS: Final = 10
FEWEST: Final = 5
"""Fewest episodes of a point in a plot."""


def plot_results(path: Path, out: Path) -> list[Path]:
    """Draw every plot of the results in `path`; return the PNG files written to `out`.

    Raises DataError if `path` is not a results file.
    """
    import matplotlib

    raw = read_results(path)
    tree = json.loads(path.read_text(encoding="utf-8"))
    results = PlotData(raw, tree["summary"], tree["allocation"])
    written = []
    with matplotlib.rc_context(STYLE):
        for draw in (
            comparison,
            utilisation,
            pacing,
            tokens_per_problem,
            allocation,
            reward_over_steps,
            reward_by_budget,
        ):
            target = out / f"{draw.__name__}.png"
            draw(results).savefig(target, bbox_inches="tight")
            written.append(target)
    return written


def comparison(results: PlotData) -> Figure:
    """Draw return, accuracy and regret, agents ordered by return."""
    agents = _by_return(results)
    figure = new_figure(10.5, 1.3 + 0.42 * len(agents))
    left, middle, right = figure.subplots(1, 3, sharey=True)
    draw_intervals(left, results, agents, "total_reward", "{:.2f}")
    left.set(title="Return", xlabel="reward per episode")
    draw_intervals(middle, results, agents, "accuracy", "{:.0%}")
    middle.set(title="Accuracy", xlabel="right answers / all problems")
    percent(middle.xaxis)
    draw_intervals(right, results, agents, "regret", "{:.2f}")
    right.set(title="Regret", xlabel="reward per episode below an oracle allocator")
    return titled(figure, "How the agents do", _episodes(results))


def utilisation(results: PlotData) -> Figure:
    """Draw the share of the budget spent."""
    agents = _by_return(results)
    figure = new_figure(6.5, 1.3 + 0.42 * len(agents))
    axes = figure.subplots()
    draw_intervals(axes, results, agents, "utilisation", "{:.0%}")
    axes.axvline(1.0, color=GREY, linewidth=1, linestyle="--", zorder=0)
    axes.set(xlabel="tokens spent / budget (dashed: all of it)", xlim=(0, None))
    percent(axes.xaxis)
    return titled(figure, "How much of the budget is spent", _episodes(results))


def pacing(results: PlotData) -> Figure:
    """Draw the tokens spent after each answer, with an even pace for comparison."""
    figure = new_figure(7.5, 4.5)
    axes = figure.subplots()
    ends = []
    for agent, episodes in results.raw.items():
        spent_EN = _cumulative(episodes)
        steps = np.arange(spent_EN.shape[1])
        low_N, high_N = np.quantile(spent_EN, [0.1, 0.9], axis=0)
        means_N, colour = spent_EN.mean(axis=0), results.colour(agent)
        axes.fill_between(steps, low_N, high_N, color=colour, alpha=0.15, linewidth=0)
        axes.plot(steps, means_N, color=colour, linewidth=results.width(agent))
        ends.append((agent, float(steps[-1]), float(means_N[-1])))
    budget = float(np.mean([e.budget for e in _all(results)]))
    problems = max(e.questions for e in _all(results))
    axes.plot([0, problems], [0, budget], color=GREY, linewidth=1, linestyle="--", zorder=0)
    axes.axhline(budget, color=GREY, linewidth=1, zorder=0)
    axes.annotate(f"budget {budget:,.0f}", (0, budget), (2, 3), textcoords="offset points")
    axes.set(xlabel="problems answered", ylabel="tokens spent so far", xlim=(0, problems))
    axes.set_ylim(0, None)
    label_ends(axes, results, ends, problems)
    note = "mean, and the middle 80 % of episodes; dashed: an even pace"
    return titled(figure, "When the budget is spent", note)


def tokens_per_problem(results: PlotData) -> Figure:
    """Draw a histogram of answer lengths for each agent, on one scale."""
    agents = list(results.raw)
    figure = new_figure(7.5, 0.8 + 0.9 * len(agents))
    panels = figure.subplots(len(agents), 1, sharex=True, squeeze=False)[:, 0]
    longest = max((max(e.tokens, default=0) for e in _all(results)), default=0)
    edges = np.linspace(0, max(longest, 1), 41)
    for axes, agent in zip(panels, agents, strict=True):
        tokens = [t for episode in results.raw[agent] for t in episode.tokens]
        weights = np.full(len(tokens), 1 / max(len(tokens), 1))
        axes.hist(tokens, edges, weights=weights, color=results.colour(agent), alpha=0.85)
        axes.spines["left"].set_visible(False)
        axes.set_yticks([])
        text = f"{agent}\n" + (f"median {np.median(tokens):,.0f}" if tokens else "no answers")
        axes.text(
            1.01, 0.5, text, transform=axes.transAxes, va="center", color=results.colour(agent)
        )
    panels[-1].set(xlabel="tokens of an answer", xlim=(0, edges[-1]))
    return titled(figure, "How long the answers are", "share of each agent's answers")


def allocation(results: PlotData) -> Figure:
    """Draw the mean tokens per answer by question type."""
    figure = new_figure(7.5, 4.5)
    axes = figure.subplots()
    kinds = sorted({k for rows in results.allocation.values() for k in rows}, key=natural)
    ends = []
    for agent, rows in results.allocation.items():
        xs = [x for x, kind in enumerate(kinds) if kind in rows]
        points = [rows[kinds[x]]["tokens"] for x in xs]
        if xs:
            ends.append(draw_line(axes, results, agent, xs, points))
    short = _without_common_prefix(kinds)
    axes.set_xticks(range(len(kinds)), short, rotation=30 if len("".join(short)) > 60 else 0)
    axes.set(xlabel="type of question", ylabel="tokens per answer", ylim=(0, None))
    label_ends(axes, results, ends, len(kinds) - 1)
    hidden = " (the environment hides the types)" if kinds == [HIDDEN] else ""
    return titled(figure, "Where the tokens go", f"mean with 95 % interval{hidden}")


def reward_over_steps(results: PlotData) -> Figure:
    """Draw the mean reward of the first, second, … answer."""
    figure = new_figure(7.5, 4.5)
    axes = figure.subplots()
    ends = []
    for agent, episodes in results.raw.items():
        rewards = [_own_rewards(episode) for episode in episodes]
        steps, points = [], []
        for step in range(max(map(len, rewards))):
            values = [row[step] for row in rewards if len(row) > step]
            if len(values) >= min(FEWEST, len(episodes)):
                steps.append(step + 1)
                points.append(bootstrap_mean(values)._asdict())
        if steps:
            ends.append(draw_line(axes, results, agent, steps, points))
    axes.axhline(0, color=GREY, linewidth=1, zorder=0)
    last = max(e.questions for e in _all(results))
    edge = max(2, last)  # with one question, the axis would have no length
    axes.set(xlabel="answer number", ylabel="reward of the answer", xlim=(1, edge))
    axes.set_xticks(range(1, last + 1, max(1, last // 10)))
    label_ends(axes, results, ends, edge)
    note = "mean with 95 % interval over the episodes that get so far, without the episode's bonus"
    return titled(figure, "What each answer earns", note)


def reward_by_budget(results: PlotData) -> Figure:
    """Draw the mean reward of an answer by the share of the budget left before it."""
    figure = new_figure(7.5, 4.5)
    axes = figure.subplots()
    ends = []
    for agent, episodes in results.raw.items():
        means: dict[int, list[float]] = {}
        for episode in episodes:
            here: dict[int, list[float]] = {}
            left = 1 - np.cumsum([0, *episode.tokens])[:-1] / episode.budget
            for share, reward in zip(left, _own_rewards(episode), strict=True):
                here.setdefault(int(np.clip(share * BINS, 0, BINS - 1)), []).append(reward)
            for tenth, rewards in here.items():
                means.setdefault(tenth, []).append(float(np.mean(rewards)))
        enough = min(FEWEST, len(episodes))
        tenths = sorted(
            (tenth for tenth, values in means.items() if len(values) >= enough), reverse=True
        )
        points = [bootstrap_mean(means[tenth])._asdict() for tenth in tenths]
        if tenths:
            middles = [(tenth + 0.5) / BINS for tenth in tenths]
            ends.append(draw_line(axes, results, agent, middles, points))
    axes.axhline(0, color=GREY, linewidth=1, zorder=0)
    axes.set(xlabel="budget left before the answer", ylabel="reward of the answer", xlim=(1, 0))
    percent(axes.xaxis)
    label_ends(axes, results, ends, 0)
    note = "mean with 95 % interval in tenths of the budget, without the episode's bonus"
    return titled(figure, "What an answer earns as the budget runs out", note)


def _cumulative(episodes: Sequence[EpisodeResult]) -> NDArray[np.float64]:
    """[E, N + 1] tokens spent after each answer; constant after the end of an episode."""
    problems = max(episode.questions for episode in episodes)
    padded = [[0, *e.tokens, *[0] * (problems - len(e.tokens))] for e in episodes]
    return np.cumsum(np.array(padded, np.float64), axis=1)


def _own_rewards(episode: EpisodeResult) -> list[float]:
    """Rewards of the answers alone: `end_reward` is subtracted from the last one."""
    *others, last = episode.rewards or (episode.end_reward,)
    return [*others, last - episode.end_reward] if episode.rewards else []


def _by_return(results: PlotData) -> list[str]:
    return sorted(results.raw, key=lambda agent: -results.summary[agent]["total_reward"]["mean"])


def _all(results: PlotData) -> list[EpisodeResult]:
    return [episode for episodes in results.raw.values() for episode in episodes]


def _episodes(results: PlotData) -> str:
    counts = [len(episodes) for episodes in results.raw.values()]
    few, many = min(counts), max(counts)
    return f"means over {few if few == many else f'{few} to {many}'} episodes, 95 % intervals"


def _without_common_prefix(names: Sequence[str]) -> list[str]:
    """Shorten names with a common prefix: `arithmetic 2`, `3`, `4`."""
    if len({name.rpartition("_")[0] for name in names}) != 1 or len(names) < 2:
        return list(names)
    return [names[0].replace("_", " ", 1), *(name.rpartition("_")[2] for name in names[1:])]
