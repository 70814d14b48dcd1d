"""Results of an evaluation as records and as a JSON file; whoever plays episodes can write one.

    write_results(Path("trained.json"), {"trained": [EpisodeResult(...), ...]})
    rlsys eval economics --add trained.json

The file holds `raw`, from which all else follows: `summary`, `paired` and `allocation`
(rlsys.environments.economics.benchmark.summary), and the `settings` it was made with.
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
    """One episode of one agent: n answers to N questions on one budget."""

    seed: int
    """Decides the questions; agents are compared on the seeds they share."""
    questions: int
    """N, those never reached included."""
    budget: int
    tokens: tuple[int, ...]
    """[n] charged for each answer."""
    right: tuple[bool, ...]
    """[n]"""
    rewards: tuple[float, ...]
    """[n]; the last one holds `end_reward` too."""
    end_reward: float = 0.0
    """What the last reward holds of the episode: its bonus, and questions never reached."""
    types: tuple[str | None, ...] = ()
    """Type of each question, of all N or of the n answered; null where types are hidden."""
    failures: int = 0
    """Answers that are empty because the model could not be asked."""
    oracle: float | None = None
    """Largest return of this episode (see benchmark/oracle.py), if it is known."""

    def __post_init__(self) -> None:
        answered = len(self.tokens)
        if not answered == len(self.right) == len(self.rewards) <= self.questions:
            raise ValueError(
                f"{answered} tokens, {len(self.right)} right and {len(self.rewards)} rewards of "
                f"{self.questions} questions do not fit together"
            )
        if not answered <= len(self.types) <= self.questions:
            raise ValueError(f"{len(self.types)} types for {answered} answers")
        if self.budget < 1 or self.questions < 1:
            raise ValueError(f"{self.questions} questions on a budget of {self.budget} tokens")

    @property
    def total_reward(self) -> float:
        """The return."""
        return sum(self.rewards)

    @property
    def spent(self) -> int:
        """Tokens charged in all."""
        return sum(self.tokens)

    def numbers(self) -> dict[str, float]:
        """What a summary averages over episodes. Ratios over nothing are 0.

        `regret` is missing where the oracle's return is not known.
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


Raw = Mapping[str, Sequence[EpisodeResult]]
"""Agent to its episodes."""


def write_results(path: Path, raw: Raw, *, settings: Mapping[str, Any] | None = None) -> None:
    """Write the episodes of all agents and what follows from them, as JSON.

    Every agent has at least one episode. `settings` tells how they came about.
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
    """Return the episodes of every agent in a file that `write_results` wrote.

    A .jsonl file holds an evaluation: RUN_DIR/samples/evaluation-STEP.jsonl of `rlsys train`, whose
    agent is called RUN@STEP, or RUN_DIR/evaluation/samples/evaluation-0.jsonl of `rlsys eval`,
    called RUN. Of a .json file only `format` and `raw` are read.

    Raises DataError for a file that is missing or malformed.
    """
    if path.suffix == ".jsonl":
        return _read_samples(path)
    from pydantic import TypeAdapter, ValidationError

    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            raise DataError(f"{path} is no file of results (no `format`: {FORMAT!r})")
        raw = TypeAdapter(dict[str, list[EpisodeResult]]).validate_python(tree.get("raw"))
    except OSError as error:
        raise DataError(f"cannot read the results {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, ("raw", *first["loc"])))
        raise DataError(f"{path}, {place}: {first['msg']}; write it with write_results") from None
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not valid JSON ({error})") from None
    empty = [agent for agent, episodes in raw.items() if not episodes]
    if empty:
        raise DataError(f"{path} holds no episode of {empty[0]!r}; leave the agent out")
    return raw


def _read_samples(path: Path) -> dict[str, list[EpisodeResult]]:
    folder = path.absolute().parents[1]
    alone = folder.name == "evaluation"
    agent = folder.parent.name if alone else f"{folder.name}@{path.stem.rpartition('-')[2]}"
    try:
        # Not splitlines: replies may hold any other separator of lines.
        lines = path.read_text(encoding="utf-8").split("\n")
        rows = [json.loads(line) for line in lines if line]
        # The row of an episode that was lost is empty.
        episodes = [_played(row["seed"], row["turns"]) for row in rows if row and row["turns"]]
    except OSError as error:
        raise DataError(f"cannot read the episodes {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is no evaluation of economics episodes ({type(error).__name__}: {error}); "
            "name a file samples/evaluation-STEP.jsonl of a run"
        ) from None
    if not episodes:
        raise DataError(f"{path} holds no episode; evaluate the run again")
    return {agent: episodes}


def _played(seed: int, turns: Sequence[Mapping[str, Any]]) -> EpisodeResult:
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
