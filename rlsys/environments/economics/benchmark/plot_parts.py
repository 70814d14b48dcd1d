"""Parts of the benchmark plots: one style, intervals, lines, and labels beside the lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rlsys.environments.economics.benchmark.results import EpisodeResult
from rlsys.environments.economics.benchmark.summary import Interval, TypeAllocation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito (2008), then three of Paul Tol's: colour-blind readers can tell them apart.
COLOURS: Final = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#882255", "#999933", "#332288"),
)
GREY: Final = "#777777"
STYLE: Final = {
    "figure.dpi": 150,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#333333",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "lines.linewidth": 2.0,
}


class PlotData(NamedTuple):
    """The contents of a results file."""

    raw: dict[str, list[EpisodeResult]]
    summary: dict[str, dict[str, Interval]]
    allocation: dict[str, dict[str, TypeAllocation]]

    def colour(self, agent: str) -> str:
        """Return the colour of an agent, the same in every plot."""
        return COLOURS[list(self.raw).index(agent) % len(COLOURS)]

    def width(self, agent: str) -> float:
        """Return an agent's line width. Later lines are thinner, to keep earlier ones visible."""
        return max(1.5, 4.0 - 0.8 * list(self.raw).index(agent))


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of `width` x `height` inches, without a window or global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def titled(figure: Figure, title: str, note: str) -> Figure:
    """Put a title and a grey note above everything; return the figure."""
    from matplotlib.transforms import ScaledTranslation

    # The title's second line is empty and leaves room for the note.
    figure.suptitle(f"{title}\n", x=0.01, ha="left", weight="bold", size=13, linespacing=1.6)
    below = figure.transFigure + ScaledTranslation(0, -20 / 72, figure.dpi_scale_trans)
    figure.text(0.01, 0.98, note, transform=below, ha="left", va="top", color=GREY)
    return figure


def draw_intervals(
    axes: Axes, results: PlotData, agents: Sequence[str], number: str, form: str
) -> None:
    """Draw one dot with its interval and value per agent, the first agent on top."""
    for row, agent in enumerate(reversed(agents)):
        point = results.summary[agent].get(number)
        if point is None:
            axes.text(0.02, row, "unknown", transform=axes.get_yaxis_transform(), color=GREY)
            continue
        colour = results.colour(agent)
        axes.hlines(row, point["low"], point["high"], color=colour, linewidth=3, alpha=0.45)
        axes.plot(point["mean"], row, "o", color=colour, markersize=6)
        axes.annotate(
            form.format(point["mean"]),
            (point["mean"], row),
            (0, 6),
            textcoords="offset points",
            ha="center",
            size=9,
        )
    axes.set_yticks(range(len(agents)), reversed(agents))
    axes.set_ylim(-0.6, len(agents) - 0.3)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.12)


def draw_line(
    axes: Axes,
    results: PlotData,
    agent: str,
    x: Sequence[float],
    points: Sequence[Mapping[str, float]],
) -> tuple[str, float, float]:
    """Draw means with their intervals; return the agent and where its line ends."""
    low, mean, high = ([point[key] for point in points] for key in ("low", "mean", "high"))
    colour = results.colour(agent)
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(x, mean, "o-", color=colour, linewidth=results.width(agent), markersize=5)
    return agent, x[-1], mean[-1]


def label_ends(
    axes: Axes, results: PlotData, ends: Sequence[tuple[str, float, float]], edge: float
) -> None:
    """Write the names at the right edge, as near to the ends of their lines as possible."""
    low, high = axes.get_ylim()
    heights = spread([y for _, _, y in ends], (high - low) * 0.055)
    for (agent, x, y), height in zip(ends, heights, strict=True):
        colour = results.colour(agent)
        if x != edge:
            axes.plot([x, edge], [y, height], ":", color=colour, linewidth=1, clip_on=False)
        axes.annotate(
            agent,
            (edge, height),
            (8, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            annotation_clip=False,
        )


def percent(axis: Axis) -> None:
    """Label an axis in percent: 0.4 as 40%."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Return `values` moved as little as possible, in the same order and at least `gap` apart.

    Example: spread([1.0, 1.0, 5.0], 1.0) is [0.5, 1.5, 5.0]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    # Values that are too near form a cluster around their mean. A new cluster that reaches into the
    # one below is merged with it, and the merged one may then reach into the next.
    clusters: list[tuple[list[int], float]] = []  # (members in order, centre)
    for index in order:
        members, centre = [index], values[index]
        while clusters:
            below, lower = clusters[-1]
            if centre - lower >= gap * (len(members) + len(below)) / 2:
                break
            clusters.pop()
            centre = (centre * len(members) + lower * len(below)) / (len(members) + len(below))
            members = below + members
        clusters.append((members, centre))
    placed = [0.0] * len(values)
    for members, centre in clusters:
        for rank, index in enumerate(members):
            placed[index] = centre + gap * (rank - (len(members) - 1) / 2)
    return placed
