"""ZeRO-3 around PolicyModel: every parameter really partitioned, losses as without DeepSpeed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forests import grow, inputs, tiny_model

from learner.logprobs import PolicyModel

STEPS = 3
TRAIN = """
import json, sys
import deepspeed, torch
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # would compile an unused kernel
from forests import grow, inputs, tiny_model
from learner.logprobs import PolicyModel

deepspeed.init_distributed(dist_backend="gloo", verbose=False)
policy = PolicyModel(tiny_model(sys.argv[1]))
keeps_slopes = sys.argv[3] == "True"
if not keeps_slopes:
    policy.model.gradient_checkpointing_enable({"use_reentrant": False})
engine, *_ = deepspeed.initialize(
    model=policy,
    optimizer=torch.optim.SGD(policy.parameters(), lr=1e-3),
    config={
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
    },
)
assert all(p.numel() == 0 for p in policy.parameters())
batch, losses = inputs(grow(seed=1).rows), []
for _ in range(int(sys.argv[2])):
    with torch.no_grad():
        engine(*batch, temperature=1.0, chunk=64)
    logprobs_RT, entropy_RT = engine(
        *batch, temperature=1.0, chunk=64, entropy=True, detach_entropy=keeps_slopes
    )
    loss = -(logprobs_RT + 0.1 * entropy_RT).sum()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
print("LOSSES", json.dumps(losses))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "keeps_slopes"), [("qwen2", True), ("llama", False)])
def test_partitioned_head_trains_like_a_whole_one(name: str, keeps_slopes: bool) -> None:
    """qwen2 ties head and embedding, llama does not.

    Either the head keeps its slopes and the entropy is not trained, or layers and head are computed
    twice. The whole head computes its logits twice in both cases.
    """
    policy, batch = PolicyModel(tiny_model(name)), inputs(grow(seed=1).rows)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)
    expected = []
    for _ in range(STEPS):
        logprobs_RT, entropy_RT = policy(*batch, temperature=1.0, chunk=64, entropy=True)
        entropy_RT = entropy_RT.detach() if keeps_slopes else entropy_RT
        loss = -(logprobs_RT + 0.1 * entropy_RT).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert expected[-1] < 0.95 * expected[0]
    assert partitioned_losses(name, keeps_slopes) == pytest.approx(expected, rel=1e-4)


def partitioned_losses(name: str, keeps_slopes: bool) -> list[float]:
    """Train in a process of its own: DeepSpeed and its process group stay out of this one."""
    root = Path(__file__).parents[2]
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    port = {"MASTER_PORT": str(29600 + os.getpid() % 300), "DS_ACCELERATOR": "cpu"}
    path = {"PYTHONPATH": f"{root}:{root / 'tests/support'}", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", TRAIN, name, str(STEPS), str(keeps_slopes)],
        env=os.environ | rank | port | path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    line = next(line for line in result.stdout.splitlines() if line.startswith("LOSSES"))
    losses: list[float] = json.loads(line.removeprefix("LOSSES"))
    return losses
