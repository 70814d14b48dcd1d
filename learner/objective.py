"""From micro-batches to losses: the forward passes of the policy and of the frozen reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from learner.batch import MicroBatch
from learner.logprobs import PolicyModel
from learner.lora import adapters_off
from learner.metrics import Sums
from learner.spec import LearnerSpec
from rlsys.algorithms.distill import with_teacher
from rlsys.algorithms.kl import kl_to_go
from rlsys.algorithms.loss import LossInputs, nll_loss, policy_loss
from rlsys.algorithms.rpo import PairInputs, pair_loss

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


class Objective:
    """The loss that a run minimises, on one rank."""

    def __init__(
        self,
        engine: DeepSpeedEngine,
        reference: PolicyModel | None,
        teacher: PolicyModel | None,
        spec: LearnerSpec,
    ) -> None:
        """`reference` is None where the loss needs none, and with adapters; `teacher` without one.

        With adapters the starting policy is the engine's own model with the adapters off.
        """
        self._engine = engine
        self._reference = reference
        self._teacher = teacher
        self._spec = spec

    def loss(self, micro: MicroBatch) -> tuple[torch.Tensor, Sums]:
        """Return the loss of a micro-batch, to go backward from, and its metric sums."""
        match self._spec.objective:
            case "policy":
                return self._policy_loss(micro)
            case "nll":
                # Advantages play no part: a weight of 0 marks the tokens that are not trained.
                logprobs_RT, _ = self.forward(micro)
                return nll_loss(logprobs_RT.flatten(), micro.weights_RT.flatten())
            case "rpo":
                return self._pair_loss(micro)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def fix_old_logprobs(self, micros: Sequence[MicroBatch]) -> None:
        """Keep the log-probs of the whole batch before its first optimizer step.

        The clipped ratio compares the policy with these, not with the engine's log-probs: those
        come from other kernels, and their rounding would look like a change of the policy. The
        importance weight of rlsys.algorithms.loss corrects for the difference between the two.
        """
        for micro in micros:
            micro.old_logprobs_RT, _ = self.forward(micro)

    def forward(
        self, micro: MicroBatch, *, temperature: float | None = None, entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return what PolicyModel.forward returns, under the weights in training.

        `temperature` None stands for the temperature at which the engines sample.
        """
        return self._run(self._engine, micro, temperature=temperature, entropy=entropy)

    def _policy_loss(self, micro: MicroBatch) -> tuple[torch.Tensor, Sums]:
        reference_RT = self._reference_logprobs(micro) if self._spec.needs_reference else None
        teacher_RT = self._teacher_logprobs(micro)
        logprobs_RT, entropy_RT = self.forward(micro, entropy=True)
        assert entropy_RT is not None
        # None where the training step has a single optimizer step: this pass itself is then the
        # policy before the step, so the ratio is 1 and only its gradient matters.
        old_RT = micro.old_logprobs_RT
        old_RT = logprobs_RT.detach() if old_RT is None else old_RT
        advantages_RT, loss = micro.advantages_RT, self._spec.loss
        if loss.kl_in == "reward":
            assert reference_RT is not None
            trained_RT = micro.weights_RT != 0
            advantages_RT = advantages_RT - loss.kl_coefficient * kl_to_go(
                old_RT, reference_RT, trained_RT, micro.exits_RT, loss.kl_estimator
            )
        if self._spec.distillation is not None:
            assert teacher_RT is not None
            advantages_RT = with_teacher(
                advantages_RT, old_RT, teacher_RT, self._spec.distillation.coefficient
            )
        inputs = LossInputs(
            logprobs_T=logprobs_RT.flatten(),
            old_logprobs_T=old_RT.flatten(),
            sampled_logprobs_T=micro.sampled_logprobs_RT.flatten(),
            advantages_T=advantages_RT.flatten(),
            weights_T=micro.weights_RT.flatten(),
            reference_logprobs_T=None if reference_RT is None else reference_RT.flatten(),
            entropy_T=entropy_RT.flatten(),
            sequences_T=micro.trees_RT.flatten(),
        )
        total, metrics = policy_loss(inputs, loss)
        if teacher_RT is not None:
            gap_RT = torch.where(micro.weights_RT != 0, old_RT.detach() - teacher_RT, 0.0)
            metrics["teacher_kl_sum"] = gap_RT.sum(dtype=torch.float64)
        return total, metrics

    def _pair_loss(self, micro: MicroBatch) -> tuple[torch.Tensor, Sums]:
        reference_RT = self._reference_logprobs(micro)
        logprobs_RT, _ = self.forward(micro)
        # A preference is one tree with both responses, so the number of the tree names the pair.
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
        """Return log-probs [R, T] under the starting policy.

        Callers run this before the policy's own pass, so that with ZeRO-3 no other forward pass
        comes between that and its backward pass.
        """
        if self._reference is not None:
            return self._run(self._reference, micro)[0]
        with adapters_off(self._engine.module):
            return self._run(self._engine, micro)[0]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _teacher_logprobs(self, micro: MicroBatch) -> torch.Tensor | None:
        """Return log-probs [R, T] under the teacher; None without one."""
        return None if self._teacher is None else self._run(self._teacher, micro)[0]

    def _run(
        self,
        policy: DeepSpeedEngine | PolicyModel,
        micro: MicroBatch,
        *,
        temperature: float | None = None,
        entropy: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        # Always in training mode. Nothing here is random (there is no dropout), and a switch to
        # eval mode would compile FlexAttention again, and ZeRO-3 would lose the order of its
        # gathers.
        result: tuple[torch.Tensor, torch.Tensor | None] = policy(
            micro.token_ids_RT,
            micro.positions_RT,
            micro.parents_RT,
            micro.exits_RT,
            micro.select_RT,
            selected_N=micro.selected_N,
            trunk=micro.trunk,
            temperature=self._spec.temperature if temperature is None else temperature,
            chunk=self._spec.config.logits_chunk,
            entropy=entropy,
            # The gradient of an entropy that is only logged would be zeros, computed at a price.
            detach_entropy=self._spec.loss.entropy_coefficient == 0,
        )
        return result
