"""The typed client of an economics server. It needs the package `openenv`, not `server/`."""

from __future__ import annotations

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from pydantic import JsonValue

from rlsys.environments.economics.models import (
    EconomicsAction,
    EconomicsObservation,
    EconomicsState,
)


class EconomicsClient(
    EnvClient[EconomicsAction, EconomicsObservation, EconomicsState]  # type: ignore[misc]
):
    """One session on an economics server.

    Example:
        with EconomicsClient(base_url="http://127.0.0.1:8000").sync() as session:
            result = session.reset(seed=7, total_budget=500)
            while not result.done:
                result = session.step(EconomicsAction(response=r"\\boxed{12}"))
    """

    def _step_payload(self, action: EconomicsAction) -> dict[str, JsonValue]:
        payload: dict[str, JsonValue] = action.model_dump()
        return payload

    def _parse_result(self, payload: dict[str, JsonValue]) -> StepResult[EconomicsObservation]:
        # On the wire reward and done stand beside the observation; here they are part of it.
        fields = payload["observation"]
        assert isinstance(fields, dict)
        observation = EconomicsObservation(**fields, reward=payload["reward"], done=payload["done"])
        return StepResult(
            observation=observation,
            reward=observation.reward,
            done=observation.done,
            metadata=observation.metadata,
        )

    def _parse_state(self, payload: dict[str, JsonValue]) -> EconomicsState:
        return EconomicsState(**payload)
