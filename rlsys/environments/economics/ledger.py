"""The token accounts of one episode.

For every answer these two equations hold:

    generated = charged + refused       refused: beyond the budget in hard mode; never graded
    charged   = trained + masked        masked: charged, but left out of the loss for a reason
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rlsys.environments.economics.errors import LedgerError
from rlsys.types import Group, Sample


class Charge(NamedTuple):
    """The tokens of one answer."""

    generated: int
    charged: int

    @property
    def refused(self) -> int:
        """Tokens beyond the budget in hard mode."""
        return self.generated - self.charged


@dataclass(frozen=True, slots=True)
class Ledger:
    """A budget and what was charged to it, one entry per answer."""

    budget: int
    charges: tuple[Charge, ...] = ()

    @property
    def spent(self) -> int:
        """Tokens charged so far; more than the budget only in soft mode."""
        return sum(charge.charged for charge in self.charges)

    @property
    def remaining(self) -> int:
        """Budget minus spent; negative when overspent."""
        return self.budget - self.spent

    def charge(self, generated: int, *, capped: bool) -> Ledger:
        """Return the ledger after an answer of `generated` tokens.

        If `capped`, at most the remaining tokens are charged and the rest is refused.
        """
        charged = min(generated, max(0, self.remaining)) if capped else generated
        return replace(self, charges=(*self.charges, Charge(generated, charged)))

    def settle(self, trained: Sequence[int], masked: Sequence[Mapping[str, int]]) -> None:
        """Check that a trainer used every charged token: charged = trained + masked.

        `trained` holds the trained tokens of each answer, `masked` its masked tokens by reason.
        Raises LedgerError for the first answer whose tokens do not add up.
        """
        if not len(self.charges) == len(trained) == len(masked):
            raise LedgerError(
                f"{len(self.charges)} answers were charged, but {len(trained)} have trained and "
                f"{len(masked)} have masked tokens; account for every answer"
            )
        for index, (charge, kept, reasons) in enumerate(
            zip(self.charges, trained, masked, strict=True)
        ):
            if charge.charged != kept + sum(reasons.values()):
                raise LedgerError(
                    f"answer {index}: {charge.charged} tokens were charged, but {kept} trained "
                    f"and {dict(reasons)} masked; every charged token must be one or the other"
                )


def settle_group(group: Group, samples: Sequence[Sample]) -> None:
    """Check the law for every episode of a group whose environment tells what it charged.

    Raises LedgerError for the first reply whose tokens do not add up.
    """
    for episode, sample in zip(group.episodes, samples, strict=True):
        charged = [turn.charged for turn in episode.turns if turn.charged is not None]
        if len(charged) != len(episode.turns):
            continue
        segments = [episode.segments[index] for index in episode.answer_segments]
        trained = [sample.advantages[index] for index in episode.answer_segments]
        charges = tuple(
            Charge(len(segment.token_ids), tokens)
            for segment, tokens in zip(segments, charged, strict=True)
        )
        Ledger(0, charges).settle(
            [0 if advantages is None else len(advantages) for advantages in trained],
            [
                {"without advantage": charge.charged} if advantages is None else {}
                for charge, advantages in zip(charges, trained, strict=True)
            ],
        )
