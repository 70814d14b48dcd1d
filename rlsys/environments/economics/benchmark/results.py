"""Results of a benchmark as records and as a JSON file, which other programs can write, too.

    write_results(Path("trained.json"), {"trained": [EpisodeResult(...), ...]})
    rlsys eval economics --add trained.json

The file holds the episodes in `raw`, the configuration of the run in `settings`, and the numbers
computed from the episodes in `summary`, `paired` and `allocation` (see the module summary).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rlsys.environments.economics.benchmark.summary import allocation, paired, summary
from rlsys.errors import DataError

FORMAT: Final = "rlsys economics results, version 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """One episode of one agent: n answers to N questions that share one budget."""

    seed: int
    """Determines the questions. Two agents are compared on the seeds that both played."""
    questions: int
    """N, unanswered ones included."""
    budget: int
    tokens: tuple[int, ...]
    """[n] tokens charged for each answer."""
    right: tuple[bool, ...]
    """[n] True for a right answer."""
    rewards: tuple[float, ...]
    """[n] reward of each step; the last one includes `end_reward`."""
    end_reward: float = 0.0
    """The part of the last reward that belongs to the whole episode: bonus + unanswered."""
    types: tuple[str | None, ...] = ()
    """Types of all N questions or of the n answered ones; None if the environment hides types."""
    failures: int = 0
    """Empty answers because the model could not be asked."""
    oracle: float | None = None
    """The oracle's return in this episode (see `oracle`); None if unknown."""

    def __post_init__(self) -> None:
        answered = len(self.tokens)
        if not answered == len(self.right) == len(self.rewards) <= self.questions:
            raise ValueError(
                f"{answered} tokens, {len(self.right)} right and {len(self.rewards)} rewards of "
                f"{self.questions} questions do not fit together; give one of each per answer"
            )
        if not answered <= len(self.types) <= self.questions:
            raise ValueError(
                f"{len(self.types)} types for {answered} answers to {self.questions} questions; "
                "give one per answer or one per question"
            )
        if self.budget < 1 or self.questions < 1:
            raise ValueError(
                f"{self.questions} questions on a budget of {self.budget} tokens; both must be at "
                "least 1"
            )

    @property
    def total_reward(self) -> float:
        """The return."""
        return sum(self.rewards)

    @property
    def spent(self) -> int:
        """Tokens charged in the whole episode."""
        return sum(self.tokens)

    def numbers(self) -> dict[str, float]:
        """Return the numbers that a summary averages over episodes.

        A ratio whose denominator is 0 is 0. `regret` is missing if the oracle's return is unknown.
        """
        answered, right, spent = len(self.tokens), sum(self.right), self.spent
        numbers = {
            "total_reward": self.total_reward,
            "accuracy": right / self.questions,
            "accuracy_answered": right / answered if answered else 0.0,
            "answered": answered / self.questions,
            "utilisation": spent / self.budget,
            "utilisation_clamped": min(1.0, spent / self.budget),
            "overspend_tokens": float(max(0, spent - self.budget)),
            "over_budget": float(spent > self.budget),
            "tokens_per_answer": spent / answered if answered else 0.0,
            "correct_per_1000_tokens": 1000 * right / spent if spent else 0.0,
            "failures": float(self.failures),
        }
        if self.oracle is not None:
            numbers["regret"] = self.oracle - self.total_reward
        return numbers


EpisodesByAgent = Mapping[str, Sequence[EpisodeResult]]
"""Name of an agent -> its episodes."""


def write_results(
    path: Path, raw: EpisodesByAgent, *, settings: Mapping[str, object] | None = None
) -> None:
    """Write the episodes of all agents and the numbers computed from them, as JSON.

    Every agent must have at least one episode. `settings` is the configuration of the run.
    """
    tree = {
        "format": FORMAT,
        "settings": settings or {},
        "summary": {agent: summary(episodes) for agent, episodes in raw.items()},
        "paired": paired(raw),
        "allocation": {agent: allocation(episodes) for agent, episodes in raw.items()},
        "raw": {agent: list(map(asdict, episodes)) for agent, episodes in raw.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(tree, indent=1), encoding="utf-8")
    part.replace(path)


def read_results(path: Path) -> dict[str, list[EpisodeResult]]:
    """Return the episodes of every agent in a results file.

    A .json file must come from `write_results`; only its `format` and `raw` are read. A .jsonl file
    must be an evaluation of a training run: RUN_DIR/samples/evaluation-STEP.jsonl of `rlsys train`,
    which gives the agent RUN@STEP, or RUN_DIR/evaluation/samples/evaluation-0.jsonl of
    `rlsys eval`, which gives the agent RUN.

    Raises DataError for a file that is missing or malformed.
    """
    if path.suffix == ".jsonl":
        return _read_samples(path)
    from pydantic import TypeAdapter, ValidationError

    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            raise DataError(
                f"{path} is not a results file (its `format` is not {FORMAT!r}); write it with "
                "write_results"
            )
        raw = TypeAdapter(dict[str, list[EpisodeResult]]).validate_python(tree.get("raw"))
    except OSError as error:
        raise DataError(f"cannot read the results {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, ("raw", *first["loc"])))
        raise DataError(f"{path}, {field}: {first['msg']}; write it with write_results") from None
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not valid JSON ({error})") from None
    empty = [agent for agent, episodes in raw.items() if not episodes]
    if empty:
        raise DataError(f"{path} holds no episode of {empty[0]!r}; remove that agent")
    return raw


def _read_samples(path: Path) -> dict[str, list[EpisodeResult]]:
    folder = path.absolute().parents[1]
    alone = folder.name == "evaluation"
    agent = folder.parent.name if alone else f"{folder.name}@{path.stem.rpartition('-')[2]}"
    try:
        # Not splitlines, because a reply may contain other line separators such as U+2028.
        lines = path.read_text(encoding="utf-8").split("\n")
        rows = [json.loads(line) for line in lines if line]
        # The row of a lost episode is an empty object.
        episodes = [
            _evaluated_episode(row["seed"], row["turns"]) for row in rows if row and row["turns"]
        ]
    except OSError as error:
        raise DataError(f"cannot read the episodes {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not an evaluation of economics episodes ({type(error).__name__}: "
            f"{error}); name a file samples/evaluation-STEP.jsonl of a run"
        ) from None
    if not episodes:
        raise DataError(f"{path} holds no episode; evaluate the run again")
    return {agent: episodes}


def _evaluated_episode(seed: int, turns: Sequence[Mapping[str, Any]]) -> EpisodeResult:
    return EpisodeResult(
        seed=seed,
        questions=int(turns[0]["problems"]),
        budget=int(turns[0]["total_budget"]),
        tokens=tuple(int(turn.get("charged", turn.get("counted"))) for turn in turns),
        right=tuple(turn["verdict"] == "right" for turn in turns),
        rewards=tuple(float(turn["reward"]) for turn in turns),
        end_reward=float(turns[-1].get("end_reward", 0.0)),
        types=tuple(turn.get("type") for turn in turns),
    )
