"""From micro-batches to losses: the forward passes of the policy and of the frozen reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from learner.batch import MicroBatch
from learner.logprobs import PolicyModel
from learner.lora import adapters_off
from learner.metrics import Sums
from learner.spec import LearnerSpec
from rlsys.algorithms.loss import LossInputs, nll_loss, policy_loss
from rlsys.algorithms.rpo import PairInputs, pair_loss


class Objective:
    """The loss that a run minimises, on one rank."""

    def __init__(self, engine: Any, reference: PolicyModel | None, spec: LearnerSpec) -> None:
        """`reference` is None where the loss needs none, or the engine's own model serves as one.

        With adapters the starting policy is the same model with the adapters off.
        """
        self._engine = engine
        self._reference = reference
        self._spec = spec

    def loss(self, micro: MicroBatch) -> tuple[torch.Tensor, Sums]:
        """Return the loss of a micro-batch, to go backward from, and its metric sums."""
        match self._spec.objective:
            case "policy":
                return self._policy_loss(micro)
            case "nll":
                logprobs_RT, _ = self.forward(micro)
                return nll_loss(logprobs_RT.flatten(), micro.weights_RT.flatten())
            case "rpo":
                return self._pair_loss(micro)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def fix_old_logprobs(self, micros: Sequence[MicroBatch]) -> None:
        """Keep the log-probs of the whole batch before its first optimizer step."""
        for micro in micros:
            micro.old_logprobs_RT, _ = self.forward(micro)

    def forward(
        self, micro: MicroBatch, *, temperature: float | None = None, entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return PolicyModel's answer under the weights in training.

        `temperature` None is the one that the engines sample at.
        """
        return self._run(self._engine, micro, temperature=temperature, entropy=entropy)

    def _policy_loss(self, micro: MicroBatch) -> tuple[torch.Tensor, Sums]:
        reference_RT = self._reference_logprobs(micro) if self._spec.needs_reference else None
        logprobs_RT, entropy_RT = self.forward(micro, entropy=True)
        assert entropy_RT is not None
        old_RT = micro.old_logprobs_RT
        inputs = LossInputs(
            logprobs_T=logprobs_RT.flatten(),
            old_logprobs_T=(logprobs_RT.detach() if old_RT is None else old_RT).flatten(),
            sampled_logprobs_T=micro.sampled_logprobs_RT.flatten(),
            advantages_T=micro.advantages_RT.flatten(),
            weights_T=micro.weights_RT.flatten(),
            reference_logprobs_T=None if reference_RT is None else reference_RT.flatten(),
            entropy_T=entropy_RT.flatten(),
        )
        return policy_loss(inputs, self._spec.loss)

    def _pair_loss(self, micro: MicroBatch) -> tuple[torch.Tensor, Sums]:
        reference_RT = self._reference_logprobs(micro)
        logprobs_RT, _ = self.forward(micro)
        inputs = PairInputs(
            logprobs_T=logprobs_RT.flatten(),
            reference_logprobs_T=reference_RT.flatten(),
            advantages_T=micro.advantages_RT.flatten(),
            weights_T=micro.weights_RT.flatten(),
            pairs_T=micro.trees_RT.flatten(),
            num_pairs=micro.num_trees,
        )
        return pair_loss(inputs, beta=self._spec.rpo.beta, alpha=self._spec.rpo.alpha)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _reference_logprobs(self, micro: MicroBatch) -> torch.Tensor:
        """[R, T] under the starting policy.

        Always before the policy's own pass, so that with ZeRO-3 nothing comes between that and its
        backward pass.
        """
        if self._reference is not None:
            return self._run(self._reference, micro)[0]
        with adapters_off(self._engine.module):
            return self._run(self._engine, micro)[0]

    def _run(
        self,
        policy: Any,
        micro: MicroBatch,
        *,
        temperature: float | None = None,
        entropy: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        # Never switched to eval mode: nothing here is random (no dropout), and a switch would make
        # FlexAttention compile again and ZeRO-3 forget the order in which it gathers.
        result: tuple[torch.Tensor, torch.Tensor | None] = policy(
            micro.token_ids_RT,
            micro.positions_RT,
            micro.parents_RT,
            micro.exits_RT,
            micro.select_RT,
            temperature=self._spec.temperature if temperature is None else temperature,
            chunk=self._spec.config.logits_chunk,
            entropy=entropy,
        )
        return result
