"""A real vLLM engine on a GPU takes new weights by writing over the old ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from gpu_engine import gpu_engine

from actors.generation import GenerationActor
from rlsys.assets import shipped_path
from rlsys.errors import SyncError
from rlsys.types import Floats

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SEQUENCE = np.random.default_rng(0).integers(4, 104, 40).astype(np.int32)
TOLERANCE = 0.05
"""Mean gap in nats between the engine and transformers, both in bfloat16."""


def new_weights(path: Path) -> Floats:
    """Write other weights of the tiny model to `path`; return log-probs of SEQUENCE under them."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(shipped_path("tiny"), dtype=torch.bfloat16)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * weight.std() * torch.randn_like(weight)
        ids = torch.from_numpy(SEQUENCE).long()
        logprobs = model(ids[None]).logits[0, :-1].float().log_softmax(-1)
    tensors = model.state_dict()
    del tensors["lm_head.weight"]  # the embedding again, which the engine takes under that name
    save_file(tensors, path)
    return np.asarray(logprobs.gather(1, ids[1:, None])[:, 0])


async def update(actor: GenerationActor, path: Path, expected: Floats) -> None:
    await actor.start(serve=True)
    with pytest.raises(SyncError, match="canary"):
        await actor.verify([SEQUENCE], [expected], TOLERANCE)  # the old weights
    await actor.begin_update()
    with actor._timed() as engine:
        assert await engine.collective_rpc("rlsys_begin") == [True]
    await actor.receive_files([str(path)])
    await actor.finish_update(1)
    assert await actor.verify([SEQUENCE], [expected], TOLERANCE) < TOLERANCE
    await actor.close()


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "cuda-graphs"])
def test_new_weights_are_written_over_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enforce_eager: bool
) -> None:
    path = tmp_path / "weights.safetensors"
    expected = new_weights(path)
    actor = gpu_engine(monkeypatch, max_sequences=4, enforce_eager=enforce_eager)
    asyncio.run(update(actor, path, expected))
