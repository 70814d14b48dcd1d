"""Pairs through the learner against a plain loop over sequences, however they are split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from one_rank import Groups, start, train
from transformers import AutoModelForCausalLM, PreTrainedModel

from learner.lora import add_adapters
from rlsys.config import LoraConfig, LossConfig
from rlsys.types import Sample

pytestmark = pytest.mark.slow

LOSS = LossConfig(aggregation="sequence_mean")
LORA = LoraConfig(rank=4, alpha=8.0)
STEPS = 3
RATE = 3e-3
SETTINGS: dict[str, Any] = {"objective": "rpo", "loss": LOSS, "temperature": 1.0, "rate": RATE}
SETTINGS |= {"max_grad_norm": 100.0}


def response_logprobs(model: PreTrainedModel, pair: Sample, *, chosen: bool) -> torch.Tensor:
    """[tokens] log-probs of the sampled tokens of one response, from one causal run."""
    prompt, thought, rejected, *rest = pair.segments
    parts = [thought, *rest] if chosen else [rejected]
    ids = torch.from_numpy(np.concatenate([prompt.token_ids, *(s.token_ids for s in parts)])).long()
    sampled = [np.full(len(s.token_ids), s.kind.sampled) for s in (prompt, *parts)]
    logp_TV = torch.log_softmax(model(ids[None]).logits[0], -1)[:-1]
    return logp_TV.gather(1, ids[1:, None])[:, 0][torch.from_numpy(np.concatenate(sampled)[1:])]


def plain_loop(path: str, pairs: Groups, lora: LoraConfig | None) -> list[dict[str, float]]:
    """DPO plus likelihood of the chosen, written out; torch's AdamW."""
    torch.manual_seed(0)  # the seed of the run: the same adapters at the start
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    if lora is not None:
        add_adapters(model, lora)
    start_model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    steps = []
    for _ in range(STEPS):
        rows = []
        for pair in (pair for group in pairs for pair in group):
            chosen = response_logprobs(model, pair, chosen=True)
            rejected = response_logprobs(model, pair, chosen=False)
            with torch.no_grad():
                chosen_start = response_logprobs(start_model, pair, chosen=True).sum()
                rejected_start = response_logprobs(start_model, pair, chosen=False).sum()
            gain = (chosen.sum() - chosen_start) - (rejected.sum() - rejected_start)
            rows.append((-torch.nn.functional.logsigmoid(0.1 * gain), -chosen.mean(), 0.1 * gain))
        preference, nll, margin = (torch.stack(column) for column in zip(*rows, strict=True))
        loss = (preference + nll).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1e9)
        optimizer.step()
        steps.append(
            {
                "loss": loss.item(),
                "grad_norm": norm.item(),
                "preference_mean": preference.mean().item(),
                "nll_mean": nll.mean().item(),
                "margin_mean": margin.mean().item(),
                "preferred_share": (margin > 0).double().mean().item(),
            }
        )
    return steps


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "adapters"])
def test_every_split_equals_a_plain_loop(
    model_path: str, pairs: Groups, lora: LoraConfig | None
) -> None:
    expected = plain_loop(model_path, pairs, lora)
    assert expected[0]["preference_mean"] == pytest.approx(np.log(2), abs=1e-6)
    assert expected[-1]["margin_mean"] > 1e-3
    splits: list[dict[str, Any]] = [
        {"zero_stage": 0, "micro_batch_rows": 8},
        {"micro_batch_rows": 1},
        {"zero_stage": 3, "micro_batch_rows": 2, "row_tokens": 128},
    ]
    for split in splits:
        worker = start(model_path, lora=lora, **SETTINGS, **split)
        for step in expected:
            metrics = train(worker, pairs)
            for name, value in step.items():
                assert metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), (split, name)
        assert metrics["tokens_trained"] == sum(s.num_trained for s in pairs[0])


def test_pairs_are_learned(model_path: str, pairs: Groups) -> None:
    worker = start(model_path, lora=LORA, **{**SETTINGS, "rate": 2e-2}, micro_batch_rows=2)
    first, *_, last = [train(worker, pairs) for _ in range(15)]
    assert first["margin_mean"] == 0.0 and first["preferred_share"] == 0.0
    assert last["preferred_share"] == 1.0
    assert last["nll_mean"] < first["nll_mean"]
