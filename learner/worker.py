"""One DeepSpeed rank: packed trees in, new weights and metrics out.

A plain class; learner.group makes Ray actors of it. Every method is called on all ranks at the same
time, because it may contain a collective operation.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from learner.batch import MicroBatch, advantage_sums, micro_batches, sequence_batches
from learner.checkpoint import export_model, load_checkpoint, save_checkpoint
from learner.engine import build_engine, join, update
from learner.flops import peak_flops, step_cost
from learner.gradient_checkpointing import memory_errors
from learner.logprobs import PolicyModel, load_policy
from learner.metrics import Sums, peak_bytes, step_metrics
from learner.objective import Objective
from learner.plan import RankPlan
from learner.schedule import learning_rate
from learner.sequence import join_sequence_group
from learner.spec import LearnerSpec
from learner.sync import SyncSpec, WeightSender
from rlsys.algorithms.loss import batch_normalisation, merge_metrics
from rlsys.config import LoraConfig
from rlsys.errors import TrainingError
from rlsys.spans import ended
from rlsys.types import Floats, Sample, Tokens
from rlsys.weights import Bucket, SentPart

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from transformers import PreTrainedModel

T = TypeVar("T")

MAX_SKIPPED = 3
"""Non-finite optimizer steps in a row after which training stops."""


class LearnerWorker:
    """A rank of the learner. Call `setup` on every rank before anything else."""

    def __init__(self, spec: LearnerSpec) -> None:
        self._spec = spec
        self._device = torch.device(spec.device_type)
        self._optimizer_steps = 0
        self._skipped_in_row = 0
        self._seconds: dict[str, float] = {}
        self.engine: DeepSpeedEngine
        """Set by `setup`."""
        self._objective: Objective
        self._sender: WeightSender

    def answers(self) -> bool:
        """Return True; a rank that works or hangs does not."""
        return True

    def address(self) -> tuple[str, int]:
        """Return an address of this node and a free port on it, for the ranks to meet at."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return ray.util.get_node_ip_address(), free.getsockname()[1]

    def node(self) -> str:
        """Return Ray's id of this node."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def setup(self, master_address: str, master_port: int) -> None:
        """Join the group and load the policy, and the frozen models that the loss needs.

        With adapters no second model is loaded: the policy without them is the reference.
        """
        spec = self._spec
        self._store = join(spec, master_address, master_port)
        self._sequence = join_sequence_group(spec.config.sequence_ranks)
        # The same seed on every rank, so that adapters, which start from random numbers, are equal.
        torch.manual_seed(spec.seed)
        np.random.seed(spec.seed)
        lora = spec.config.lora
        policy = self._load(
            spec.model_path,
            spec.dtype,
            gradient_checkpointing=spec.checkpointing,
            lora=lora,
        )
        self.engine = build_engine(policy, spec)
        reference = None
        if spec.needs_reference and lora is None:
            # A whole copy on every rank, with ZeRO-3 too: it has neither gradients nor optimizer.
            reference = self._load(spec.model_path, spec.dtype).requires_grad_(False)
        teacher = None
        if spec.distillation is not None:
            model = spec.distillation.teacher
            teacher = self._load(model.path, model.dtype).requires_grad_(False)
        self._objective = Objective(self.engine, reference, teacher, spec)
        self._cost = step_cost(self.module)

    @property
    def module(self) -> PreTrainedModel:
        """The transformers model; learner.weights gives its parameters the checkpoint's names."""
        return self.engine.module.model

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage that runs; at 3 parameters are whole only inside a gather."""
        stage: int = self.engine.zero_optimization_stage()
        return stage

    def step(self, plan: RankPlan, *groups: Sequence[Sample]) -> dict[str, float]:
        """Train on one batch and return its metrics, the same on every rank.

        Args:
            plan: this rank's part of the batch.
            groups: the samples of the groups in `plan.groups`, in that order.

        Returns:
            loss (mean over optimizer steps), grad_norm (before clipping, mean), learning_rate (of
            the last one), skipped (optimizer steps whose loss or gradient was not finite; they
            enter no metric of the loss), skipped_in_row (how many of them have no other step after
            them, earlier calls included), tokens_packed, padding_share, tokens_per_s (packed tokens
            of all ranks), tokens_trained, peak_gib (largest of all ranks, see
            learner.metrics.peak_bytes), tflops (per second and rank, see learner.flops), mfu (the
            same over the peak of a known card), seconds_* of the parts (the slowest rank's),
            advantage_scale and advantage_shift (where advantages are normalised), and what
            rlsys.algorithms.loss.summarise makes of the loss's sums.

        Raises:
            TrainingError: the third optimizer step in a row was not finite, or the card has too
                little memory.
        """
        started = time.perf_counter()
        self._seconds = {"pack": 0.0, "old_logprobs": 0.0, "gradient": 0.0, "update": 0.0}
        with self._timed("pack"):
            shift, scale = self._normalisation(plan, groups)
            batches = micro_batches(
                plan,
                groups,
                self._spec.loss,
                micro_batch_rows=self._spec.config.micro_batch_rows,
                device=self._device,
                sequence_ranks=self._spec.config.sequence_ranks,
                advantage_shift=shift,
                advantage_scale=scale,
            )
        micros = [micro for batch in batches for micro in batch]
        # The ratio compares with the policy before this batch. With a single optimizer step that is
        # the policy of the loss's own forward pass, so no extra pass is needed.
        with memory_errors(self._spec.rank, self._spec.checkpointing):
            if len(batches) > 1 and self._spec.objective == "policy":
                with self._timed("old_logprobs"):
                    self._objective.fix_old_logprobs(micros)
            results = [self._optimizer_step(batch) for batch in batches]
        applied = [result for result in results if result is not None]
        self._seconds["step"] = time.perf_counter() - started
        metrics = step_metrics(
            [sums for sums, _ in applied],
            packed=sum(micro.num_tokens for micro in micros),
            slots=sum(micro.num_slots for micro in micros),
            seconds=self._seconds,
            peak_bytes=peak_bytes(self._device),
            flops=sum(map(self._cost.flops, micros)),
            peak_flops=peak_flops(self._device, self._spec.dtype),
            device=self._device,
            sequence_ranks=self._spec.config.sequence_ranks,
        )
        metrics |= self._update_metrics([norm for _, norm in applied], len(results))
        if self._spec.loss.normalise_advantages:
            metrics |= {"advantage_scale": scale, "advantage_shift": shift}
        return metrics

    def _update_metrics(self, norms: Sequence[float], steps: int) -> dict[str, float]:
        """Return what became of `steps` optimizer steps; `norms` are those of the applied ones."""
        metrics = {
            "learning_rate": self.engine.optimizer.param_groups[0]["lr"],
            "skipped": float(steps - len(norms)),
            "skipped_in_row": float(self._skipped_in_row),
        }
        return metrics | ({"grad_norm": sum(norms) / len(norms)} if norms else {})

    def _normalisation(
        self, plan: RankPlan, groups: Sequence[Sequence[Sample]]
    ) -> tuple[float, float]:
        """Return what is subtracted from all advantages of the batch, and the factor after it.

        Both are the same on every rank.
        """
        rule = self._spec.loss.normalise_advantages
        if not rule:
            return 0.0, 1.0
        # Environment actors hold single groups, and the driver holds no advantages. The ranks
        # together hold every sample of the batch equally often, more than once if ranks share rows.
        # The means that follow from the sums are then the same.
        sums = torch.tensor(advantage_sums(plan, groups), dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(sums)
        return batch_normalisation(*sums.tolist(), whiten=rule == "whiten")

    def _optimizer_step(self, batch: list[MicroBatch]) -> tuple[Sums, float] | None:
        """Train on a mini-batch; return its sums and gradient norm, or None if it was skipped."""
        rate = learning_rate(
            self._optimizer_steps, self._spec.config.optimizer, self._spec.total_steps
        )
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        with self._timed("gradient"):
            sums = self._accumulate(batch)
        with self._timed("update"):
            applied, norm = update(self.engine, self._spec.config.optimizer.max_grad_norm)
        # A skipped step counts too: the schedule is planned for all steps of the run.
        self._optimizer_steps += 1
        self._skipped_in_row = 0 if applied else self._skipped_in_row + 1
        if self._skipped_in_row >= MAX_SKIPPED:
            raise TrainingError(
                f"the loss or its gradient was not finite in optimizer step {self._optimizer_steps}"
                f" and the {MAX_SKIPPED - 1} before it; give the same command again with a "
                f"learner.optimizer.learning_rate smaller than {rate:g} to go on from the last "
                "checkpoint, which is older than these steps; if this error returns at once, "
                "delete the newest folder in checkpoints to go on from the one before"
            )
        return (sums, norm) if applied else None

    def _accumulate(self, batch: list[MicroBatch]) -> Sums:
        """Run forward and backward over the micro-batches; return the sums of loss and metrics."""
        sums: Sums = {}
        broken = torch.zeros((), dtype=torch.int32, device=self._device)
        for number, micro in enumerate(batch, start=1):
            last = number == len(batch)
            # DeepSpeed adds gradients up until a boundary, and `update` takes a step only there.
            self.engine.set_gradient_accumulation_boundary(last)
            loss, metrics = self._objective.loss(micro)
            metrics["loss"] = loss.detach().double()
            sums = merge_metrics(sums, metrics) if sums else metrics
            broken |= ~torch.isfinite(loss.detach())
            if last:
                # A loss can be infinite while its gradient is finite. One broken loss anywhere
                # makes every rank's gradient NaN here, so the check of the gradient norm in
                # `update` is the only way to skip a step, and all ranks take it together.
                torch.distributed.all_reduce(broken, torch.distributed.ReduceOp.MAX)
                loss = loss * torch.where(broken > 0, torch.nan, 1.0)
            # DeepSpeed divides gradients by the number of ranks, but the token weights hold the
            # normaliser of the whole optimizer step, so the gradients of ranks must add up. That is
            # so for ranks that share rows too: each has the gradient of its own log-probs only.
            self.engine.backward(loss * self._spec.config.ranks)
        return sums

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def sequence_logprobs(self, sequences: Sequence[Tokens]) -> list[Floats]:
        """Return, per sequence, the log-probs of its tokens but the first, at temperature 1."""
        batches = sequence_batches(
            sequences,
            micro_batch_rows=self._spec.config.micro_batch_rows,
            device=self._device,
            sequence_ranks=self._spec.config.sequence_ranks,
        )
        rows: list[Floats] = []
        # Temperature 1, as the engines use when they score the canary of a weight sync.
        for batch in batches:
            logprobs_RT, _ = self._objective.forward(batch, temperature=1.0)
            rows.extend(logprobs_RT.cpu().numpy())
        # Nothing predicts a first token, and rows are padded to a common width.
        return [row[1 : len(ids)] for row, ids in zip(rows, sequences, strict=True)]

    def open_sync(self, spec: SyncSpec) -> list[Bucket]:
        """Prepare to send weights; return the plan of buckets."""
        self._sender = WeightSender(
            self.module,
            spec,
            dtype=self._spec.dtype,
            rank=self._spec.rank,
            partitioned=self.zero_stage == 3,
        )
        return self._sender.plan()

    def join_sync(self, host: str) -> None:
        """Meet the engines' workers; returns once all are there."""
        self._sender.join(host)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def send(self) -> list[SentPart]:
        """Send the current weights; see WeightSender.send."""
        return self._sender.send()

    def save(self, folder: Path) -> None:
        """Write everything that is needed to continue from here to `folder`."""
        state = {"steps": self._optimizer_steps, "skipped_in_row": self._skipped_in_row}
        save_checkpoint(self.engine, folder, state)

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote; raises CheckpointError if it does not fit."""
        state = load_checkpoint(self.engine, folder, self._spec)
        self._optimizer_steps = state["steps"]
        self._skipped_in_row = state["skipped_in_row"]

    def export(self, folder: Path) -> None:
        """Write a Hugging Face folder (weights in the run's precision, tokenizer) to `folder`."""
        export_model(self.module, folder, self._spec, partitioned=self.zero_stage == 3)

    def on_node(self, function: Callable[..., T], *args: object) -> T:
        """Call a function in this process, for work on the files of its node."""
        return function(*args)

    def close(self) -> None:
        """Leave the process group; the rank is of no use afterwards."""
        del self._objective, self.engine
        torch.distributed.destroy_process_group()

    def _load(
        self,
        path: str,
        dtype: str,
        *,
        gradient_checkpointing: bool | int = False,
        lora: LoraConfig | None = None,
    ) -> PolicyModel:
        return load_policy(
            path,
            dtype=getattr(torch, dtype),
            device=self._device,
            gradient_checkpointing=gradient_checkpointing,
            # ZeRO-3 gathers parameters in hooks between the modules, which a compiled layer skips.
            compiled=(
                self._spec.config.compile
                and self._device.type == "cuda"
                and self._spec.config.zero_stage < 3
            ),
            lora=lora,
            sequence=self._sequence,
        )

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        self._seconds[part] += seconds
        ended(part, seconds)
