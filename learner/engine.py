"""The DeepSpeed engine of a rank: joining the group, its configuration, one guarded update.

Precision. In bfloat16 every stage keeps float32 master weights, optimizer state and gradient sums.
DeepSpeed's own stage-0 bfloat16 optimizer sums gradients in bfloat16 and learns visibly worse, so
stage 0 in bfloat16 runs as stage 1: the same numbers, with the master weights split over ranks.

Accumulation. The configuration says one micro-batch per step; the worker moves the boundary itself
(`set_gradient_accumulation_boundary`), because the number of micro-batches changes with the tokens.
DeepSpeed then divides by nothing but the number of ranks, which the worker multiplies back.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

import torch

from learner.layout import planned_layout
from learner.spec import LearnerSpec
from rlsys.network import interface_variables, interfaces

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

REDUCE_BUCKET = 50_000_000
"""Elements per gradient reduction; DeepSpeed's default, ten times that, allocates gigabytes."""


AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""The environment variable with which torch starts no store of its own."""


def host_store(address: str, port: int) -> torch.distributed.TCPStore:
    """Serve the meeting point of all ranks at one address of this machine.

    Left to itself, torch would listen at all its addresses, and asks nobody for a password.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family)
    except OSError:  # a container whose address outside is not one that it has inside
        listener = socket.create_server(("", port))
    return torch.distributed.TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def join(
    spec: LearnerSpec, master_address: str, master_port: int
) -> torch.distributed.TCPStore | None:
    """Join the process group of all ranks; returns once every rank has.

    Returns:
        On rank 0 the meeting point, which ends with this object. None elsewhere, and in a process
        that has joined before.
    """
    if torch.distributed.is_initialized():
        return None
    store = host_store(master_address, master_port) if spec.rank == 0 else None
    os.environ.update(
        RANK=str(spec.rank),
        LOCAL_RANK="0",  # Ray shows a rank only its own card
        WORLD_SIZE=str(spec.config.ranks),
        MASTER_ADDR=master_address,
        MASTER_PORT=str(master_port),
        DS_ACCELERATOR=spec.device_type,
    )
    os.environ[AGENT_STORE] = "True"
    if spec.rank == 0:
        address = master_address
    else:
        import ray

        address = ray.util.get_node_ip_address()
    os.environ.update(interface_variables(address, interfaces()))
    if spec.device_type == "cuda":
        torch.cuda.set_device(0)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    import deepspeed

    # On the CPU this function would compile an extension that only DeepSpeed's inference uses.
    # Without a compiler it fails, and a killed build leaves a lock for which every later run waits
    # for ever. The module is taken from sys.modules, because the attribute deepspeed.comm.torch is
    # torch itself.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    backend = "nccl" if spec.device_type == "cuda" else "gloo"
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
    # A process that this one starts may serve a store of its own.
    del os.environ[AGENT_STORE]
    return store


def build_engine(policy: torch.nn.Module, spec: LearnerSpec) -> DeepSpeedEngine:
    """Return the DeepSpeed engine around `policy`, with torch's AdamW (it resumes bit for bit).

    Frozen parameters have neither gradient nor optimizer state.
    """
    import deepspeed

    optimizer = spec.config.optimizer
    engine, *_ = deepspeed.initialize(
        model=policy,
        optimizer=torch.optim.AdamW(
            [p for p in policy.parameters() if p.requires_grad],
            lr=optimizer.learning_rate,
            betas=optimizer.betas,
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
        ),
        config=_configuration(spec),
    )
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

    if isinstance(engine.optimizer, BF16_Optimizer):
        _add_without_copies(engine.optimizer)
    return engine


def _add_without_copies(optimizer: BF16_Optimizer) -> None:
    """Let gradients in bfloat16 be added to their float32 sums as they are.

    DeepSpeed makes a copy in float32 first. The sums are the same bit by bit.
    """

    def add(weight: torch.Tensor, group: int, index: int, clear_lp_grads: bool) -> None:
        if weight.grad is not None:
            total = optimizer.fp32_groups_gradients[group][index]
            total.add_(weight.grad.view(total.shape))
            optimizer.fp32_groups_has_gradients[group][index] = True

    optimizer._update_hp_grad = add


def _configuration(spec: LearnerSpec) -> dict[str, Any]:
    stage = planned_layout(spec.config, spec.dtype).stage
    configuration: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # At stage 0 `update` clips, after it has looked at the norm.
        "gradient_clipping": spec.config.optimizer.max_grad_norm if stage else 0.0,
        "steps_per_print": sys.maxsize,
        "zero_allow_untested_optimizer": True,
        # It would wait for the card before every forward pass, and the card then for the next one.
        "timers": {"throughput": {"enabled": False}},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": REDUCE_BUCKET},
    }
    if spec.config.optimizer.offload == "cpu":
        configuration["zero_optimization"] |= {
            "offload_optimizer": {"device": "cpu", "pin_memory": spec.device_type == "cuda"}
        }
        # DeepSpeed's own AdamW for the CPU needs a compiler on every node; torch's does not.
        configuration["zero_force_ds_cpu_optimizer"] = False
    if spec.dtype == "bfloat16":
        configuration["bf16"] = {"enabled": True, "check_grad_overflow": True}
        # At stage 1: each gradient is added to its float32 sum and freed as soon as it is there.
        configuration["bf16"]["immediate_grad_update"] = True
        configuration["data_types"] = {"grad_accum_dtype": "fp32"}
    return configuration


def update(engine: DeepSpeedEngine, max_grad_norm: float) -> tuple[bool, float]:
    """Clip the accumulated gradients and step, unless their norm is not finite.

    The norm is that of the reduced gradients, so every rank takes the same decision. The ZeRO
    optimizers test the norm themselves, discard the gradients if it is not finite and report that;
    at stage 0 the same is done here.

    Returns:
        Whether the weights changed, and the gradient norm before clipping (inf or nan if they did
        not).
    """
    if engine.zero_optimization_stage() > 0:
        engine.step()
        applied = bool(engine.was_step_applied())
        return applied, float(engine.get_global_grad_norm()) if applied else math.inf
    norm = float(torch.nn.utils.clip_grad_norm_(engine.module.parameters(), max_grad_norm))
    if not math.isfinite(norm):
        engine.zero_grad()
        return False, norm
    engine.step()
    return True, norm
