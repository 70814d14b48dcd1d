"""Advantages of every method on the same trees: signal against noise, and direction.

    python benchmarks/estimator_lab.py configs/demo.yaml data.train.difficulty=[5,8]
    python benchmarks/estimator_lab.py configs/demo.yaml --checkpoint runs/demo/checkpoints/step-40

Every thought is answered once at every budget. Methods with one score see the same thoughts with
the last answer only. The gradient of a group is linear in its advantages, so one gradient per
episode and piece (the thought tokens of a slot, or one answer) gives the gradients of all methods.

Sampled trees: of every problem there are groups of the usual size, and one large group of other
thoughts. A checkpoint has no large groups, so the cosines are missing, and its run must have one
answer per budget. Per method the result has

    no_signal       share of groups whose advantages are all 0
    signal_to_noise length of the mean gradient of a training step of `--step` groups, divided by
                    the root mean square of its deviation, over bootstrap resamples of the groups
    own             mean cosine between a resampled step and the same method on the large groups
    anytime, final  the same with the gradient of the mean score over the budgets, and of the score
                    at the largest budget, from the large groups

Shapes: G episodes of a group, M budgets, P = 2 M pieces, D numbers of a gradient, N groups.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from lab_trees import PieceGradients, recorded_trees, sampled_trees
from rlsys.algorithms.samples import build_samples, token_slots
from rlsys.algorithms.tree_samples import THOUGHT
from rlsys.config import AnytimeConfig, RunConfig
from rlsys.config.loading import load_config
from rlsys.types import Episode, Group, Problem

Floats64 = NDArray[np.float64]
Episodes = Sequence[Episode]
RESULT = Path(__file__).parent / "results" / "estimator_lab.json"
TASK = Problem(id="lab", text="", answer="")
RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Method:
    """A method with its settings."""

    sees: Literal["tree", "last answer"]
    settings: tuple[str, ...]

    @property
    def whitens(self) -> bool:
        """True if the mean over a training step is subtracted."""
        return "method=reinforce++" in self.settings


SUMMARY = "summary_weight=0.25"
"""1 / budgets, as in Eq. 10 of BRPO, for the four budgets of configs/demo.yaml."""
METHODS = {
    "BRPO, uniform": Method("tree", ("method=brpo", "prior=uniform", SUMMARY)),
    "BRPO, linear": Method("tree", ("method=brpo", "prior=linear", SUMMARY)),
    "BRPO, base": Method("tree", ("method=brpo", "prior=base", SUMMARY)),
    "BRPO, only V1": Method("tree", ("method=brpo", "mode=v1only", SUMMARY)),
    "BRPO, only V2": Method("tree", ("method=brpo", "mode=v2only", SUMMARY)),
    "S-GRPO": Method("tree", ("method=sgrpo",)),
    "GRPO, none": Method("last answer", ("method=grpo",)),
    "GRPO, std": Method("last answer", ("method=grpo", "scale=std")),
    "GRPO, mean (MaxRL)": Method("last answer", ("method=grpo", "scale=mean")),
    "GRPO, overlong": Method("last answer", ("method=grpo", "overlong.buffer=16")),
    "REINFORCE++, batch": Method("last answer", ("method=reinforce++",)),
    "DDCA": Method("last answer", ("method=ddca",)),
    "DLER, 50 tokens": Method("last answer", ("method=dler", "length_limit=50")),
    "LCPO, 40 tokens": Method("last answer", ("method=lcpo", "target_length=40", "alpha=0.003")),
}
"""RLOO and REINFORCE++ with a group baseline are left out: they are `GRPO, none` times a factor
that is the same for all groups."""
ANYTIME, FINAL = "BRPO, only V2", "GRPO, none"
"""Methods whose large groups give the gradients of the two objectives."""


class Lab:
    """The settings of the trees, and what the methods make of a group."""

    def __init__(self, config: RunConfig) -> None:
        assert isinstance(config.environment, AnytimeConfig)
        self.budgets = config.environment.budgets
        self._answer_tokens = config.environment.answer_tokens

    def method_config(self, method: Method, size: int) -> RunConfig:
        """Return the configuration of a method for groups of `size` episodes."""
        budgets = self.budgets if method.sees == "tree" else self.budgets[-1:]
        words = [f"algorithm.{setting}" for setting in method.settings]
        words += [f"environment.budgets={list(budgets)}", "environment.answers=1"]
        words += [f"environment.answer_tokens={self._answer_tokens}", f"batch.group_size={size}"]
        return load_config(None, words)

    def advantages(self, episodes: Episodes, method: Method) -> Floats64:
        """Return the advantage of every piece of every episode of one group, [G, P]."""
        whole = method.sees == "tree"
        seen = tuple(episodes) if whole else tuple(map(last_answer, episodes))
        config = self.method_config(method, len(seen))
        samples = build_samples(Group(index=0, task=TASK, episodes=seen), config)
        pieces_GP = np.zeros((len(seen), 2 * len(self.budgets)))
        for row_P, episode, sample in zip(pieces_GP, seen, samples, strict=True):
            thought_L = sample.advantages[THOUGHT]
            assert thought_L is not None
            slots, first_tokens = np.unique(token_slots(episode, self.budgets), return_index=True)
            row_P[slots] = thought_L[first_tokens]
            for place, segment in enumerate(reversed(episode.answer_segments.tolist()), 1):
                answer = sample.advantages[segment]
                assert answer is not None
                row_P[-place] = answer[0] * (sample.weights[segment] if sample.weights else 1.0)
        return pieces_GP


def last_answer(episode: Episode) -> Episode:
    """Return the same thought with its answer at the largest budget as the only one."""
    kept = [int(episode.answer_segments[-1])]
    while kept[0] != 0:
        kept.insert(0, episode.segments[kept[0]].parent)
    segments = [replace(episode.segments[old], parent=new - 1) for new, old in enumerate(kept)]
    return replace(
        episode,
        segments=tuple(segments),
        scores=episode.scores[-1:],
        answer_segments=np.array([len(kept) - 1], np.int32),
        splits=np.zeros(1, np.int32),
        verdicts=episode.verdicts[-1:],
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups with the gradients of their pieces, [G, P, D] each."""

    groups: list[Episodes] = field(default_factory=list)
    pieces: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, episodes: Episodes, pieces_GPD: NDArray[np.float32]) -> None:
        """Add one group."""
        self.groups.append(episodes)
        self.pieces.append(pieces_GPD)


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a method makes of N groups."""

    groups_ND: Floats64
    """Gradient of each group, divided by its episodes."""
    plain_ND: Floats64
    """The same with advantage 1 on what the method trains: the effect of a shift."""
    mean_N: Floats64
    """Mean advantage of the episodes of each group."""
    no_signal: float

    def step(self, chosen: NDArray[np.int64], *, whiten: bool) -> Floats64:
        """Return the mean gradient of the chosen groups, [D]; `whiten` subtracts their mean."""
        gradient_D: Floats64 = self.groups_ND[chosen].mean(axis=0)
        if whiten:
            shift = self.mean_N[chosen].mean()
            gradient_D = gradient_D - shift * self.plain_ND[chosen].mean(axis=0)
        return gradient_D


def gradients(lab: Lab, method: Method, batch: Batch) -> Gradients:
    """Return the gradients of a method on the groups of a batch."""
    rows, plain, means, silent = [], [], [], 0
    for episodes, pieces_GPD in zip(batch.groups, batch.pieces, strict=True):
        advantages_GP = lab.advantages(episodes, method)
        trained_P = np.ones(advantages_GP.shape[1])
        if method.sees != "tree":
            trained_P[len(lab.budgets) : -1] = 0.0
        rows.append(np.einsum("gp,gpd->d", advantages_GP, pieces_GPD) / len(episodes))
        plain.append(np.einsum("p,gpd->d", trained_P, pieces_GPD) / len(episodes))
        means.append(advantages_GP[:, -1].mean())
        silent += not advantages_GP.any()
    return Gradients(np.stack(rows), np.stack(plain), np.array(means), silent / len(rows))


def compare(lab: Lab, usual: Batch, large: Batch, step: int) -> dict[str, dict[str, float]]:
    """Return the figures of every method; without cosines if there are no large groups."""
    every = np.arange(len(large.groups))
    whole = {
        name: gradients(lab, method, large).step(every, whiten=method.whitens)
        for name, method in METHODS.items()
        if len(every)
    }
    draws = np.random.default_rng(0).integers(len(usual.groups), size=(RESAMPLES, step))
    table = {}
    for name, method in METHODS.items():
        found = gradients(lab, method, usual)
        steps_RD = np.stack([found.step(chosen, whiten=method.whitens) for chosen in draws])
        mean_D = steps_RD.mean(axis=0)
        noise = float(np.square(steps_RD - mean_D).sum(axis=1).mean())
        # The mean of N groups has noise too: step / N of that of a step. Without the correction, a
        # method without any signal would seem to have one.
        signal = max(float(mean_D @ mean_D) - noise * step / len(usual.groups), 0.0)
        ratio = (signal / noise) ** 0.5 if noise else 0.0
        table[name] = {"no_signal": found.no_signal, "signal_to_noise": ratio}
        references = {"own": name, "anytime": ANYTIME, "final": FINAL} if whole else {}
        for column, reference in references.items():
            table[name][column] = mean_cosine(steps_RD, whole[reference])
    return table


def mean_cosine(steps_RD: Floats64, reference_D: Floats64) -> float:
    """Return the mean cosine between every step and the reference."""
    lengths_R = np.linalg.norm(steps_RD, axis=1) * np.linalg.norm(reference_D)
    return float(np.mean(steps_RD @ reference_D / np.maximum(lengths_R, 1e-30)))


def side_by_side(lab: Lab, episodes: Episodes) -> dict[str, Any]:
    """Return scores and lengths of one group, and the advantages that every method gives it."""
    return {
        "scores": [e.scores.tolist() for e in episodes],
        "thought_tokens": [len(e.segments[THOUGHT].token_ids) for e in episodes],
        "advantages": {
            name: np.round(lab.advantages(episodes, method), 4).tolist()
            for name, method in METHODS.items()
        },
    }


def markdown(table: dict[str, dict[str, float]]) -> str:
    """Return the table of docs/methods.md."""
    columns = list(next(iter(table.values())))
    lines = ["| method | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, row in table.items():
        lines.append(f"| {name} | " + " | ".join(f"{row[c]:.2f}" for c in columns) + " |")
    return "\n".join(lines)


def collect(given: argparse.Namespace, config: RunConfig, lab: Lab) -> tuple[Batch, Batch]:
    """Return the groups of the usual size, and the large groups; a checkpoint has none of these."""
    model = PieceGradients(
        config.model.path, lab.budgets, config.generation.temperature, given.numbers
    )
    usual, large = Batch(), Batch()
    if given.checkpoint:
        for episodes in recorded_trees(given.checkpoint, config):
            usual.add(episodes, np.stack([model.of(episode) for episode in episodes]))
        return usual, large
    first = given.groups * given.size
    for episodes in sampled_trees(config, given.problems):
        pieces_GPD = np.stack([model.of(episode) for episode in episodes])
        for start in range(0, first, given.size):
            part = slice(start, start + given.size)
            usual.add(episodes[part], pieces_GPD[part])
        large.add(episodes[first:], pieces_GPD[first:])
    return usual, large


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", help="key.path=value")
    parser.add_argument("--checkpoint", type=Path, help="folder step-N of an anytime run")
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--groups", type=int, default=2, help="groups per problem")
    parser.add_argument("--size", type=int, default=8, help="episodes per group")
    parser.add_argument("--large", type=int, default=32, help="episodes of the large group")
    parser.add_argument("--step", type=int, default=16, help="groups per training step")
    parser.add_argument("--numbers", type=int, default=4096, help="size of a reduced gradient")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args()


def main() -> None:
    """Collect trees, compare the methods, write the result."""
    given = arguments()
    torch.set_num_threads(given.threads)
    began = time.monotonic()
    size = given.groups * given.size + given.large
    words = ["environment.answers=1", f"batch.group_size={size}"]
    config = load_config(given.config, given.overrides + ([] if given.checkpoint else words))
    lab = Lab(config)
    usual, large = collect(given, config, lab)
    table = compare(lab, usual, large, given.step)
    mixed = [g for g in usual.groups if 0 < np.mean([e.scores[-1] for e in g]) < 1]
    result = {
        "settings": {k: v if isinstance(v, int) else str(v) for k, v in vars(given).items()},
        "budgets": list(lab.budgets),
        "groups": len(usual.groups),
        "seconds": round(time.monotonic() - began),
        "table": table,
        "example": side_by_side(lab, (mixed or usual.groups)[0]),
    }
    given.out.write_text(json.dumps(result) + "\n")
    print(markdown(table))


if __name__ == "__main__":
    main()
