"""The typed client. Needs `openenv`, never the server's code."""

from __future__ import annotations

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult

from rlsys.environments.economics.models import (
    EconomicsAction,
    EconomicsObservation,
    EconomicsState,
)


class EconomicsClient(
    EnvClient[EconomicsAction, EconomicsObservation, EconomicsState]  # type: ignore[misc]
):
    """One session with an economics server.

    Example:
        with EconomicsClient(base_url="http://127.0.0.1:8000").sync() as session:
            result = session.reset(seed=7, total_budget=500)
            while not result.done:
                result = session.step(EconomicsAction(response=r"\\boxed{12}"))
    """

    def _step_payload(self, action: EconomicsAction) -> dict[str, Any]:
        payload: dict[str, Any] = action.model_dump()
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[EconomicsObservation]:
        observation = EconomicsObservation(
            **payload["observation"], reward=payload["reward"], done=payload["done"]
        )
        return StepResult(
            observation=observation,
            reward=payload["reward"],
            done=payload["done"],
            metadata=observation.metadata,
        )

    def _parse_state(self, payload: dict[str, Any]) -> EconomicsState:
        return EconomicsState(**payload)
