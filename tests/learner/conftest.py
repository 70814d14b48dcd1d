"""A tiny policy and a fixed batch of trees for the learner's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlsys.types import NO_PARENT, Kind, Sample, Segment

VOCABULARY = 32


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a random Llama with a tied head, and files that stand for a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("policy")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    Path(folder, "tokenizer_config.json").write_text('{"kept": "as it is"}')
    return str(folder)


@pytest.fixture(scope="session")
def groups() -> list[tuple[Sample, ...]]:
    """Four groups of three trees: a thought with two answers that leave it at different cuts."""
    rng = np.random.default_rng(0)
    return [tuple(tree(rng) for _ in range(3)) for _ in range(4)]


@pytest.fixture(scope="session")
def pairs() -> list[tuple[Sample, ...]]:
    """Ten preferences; some chosen responses have a forced close between thought and answer."""
    rng = np.random.default_rng(1)
    return [tuple(preference(rng, closed=bool(number % 2)) for number in range(10))]


def preference(rng: np.random.Generator, *, closed: bool) -> Sample:
    """A prompt, a chosen and a rejected response of different lengths."""

    def segment(parent: int, cut: int, kind: Kind, length: int) -> Segment:
        return Segment(
            parent=parent,
            cut=cut,
            kind=kind,
            token_ids=rng.integers(0, VOCABULARY, length).astype(np.int32),
            logprobs=np.zeros(length, np.float32) if kind.sampled else None,
            versions=(0, 0) if kind.sampled else None,
        )

    chosen, rejected = (int(length) for length in rng.integers(3, 12, 2))
    segments = [
        segment(NO_PARENT, 0, Kind.PROMPT, 4),
        segment(0, 4, Kind.THOUGHT, chosen),
        segment(0, 4, Kind.ANSWER, rejected),
    ]
    if closed:
        segments += [segment(1, chosen, Kind.FORCED, 2), segment(3, 2, Kind.ANSWER, 3)]
    return Sample(
        segments=tuple(segments),
        advantages=tuple(
            np.full(len(s.token_ids), -1 if i == 2 else 1, np.float32) if s.kind.sampled else None
            for i, s in enumerate(segments)
        ),
    )


def tree(rng: np.random.Generator) -> Sample:
    """A prompt, a thought, a forced close at its end and in its middle, an answer after each."""
    thought = int(rng.integers(4, 12))

    def segment(parent: int, cut: int, kind: Kind, length: int) -> Segment:
        return Segment(
            parent=parent,
            cut=cut,
            kind=kind,
            token_ids=rng.integers(0, VOCABULARY, length).astype(np.int32),
            logprobs=rng.normal(-3.4, 0.1, length).astype(np.float32) if kind.sampled else None,
            versions=(0, 0) if kind.sampled else None,
        )

    segments = (
        segment(NO_PARENT, 0, Kind.PROMPT, 3),
        segment(0, 3, Kind.THOUGHT, thought),
        segment(1, thought // 2, Kind.FORCED, 2),
        segment(2, 2, Kind.ANSWER, 3),
        segment(1, thought, Kind.FORCED, 2),
        segment(4, 2, Kind.ANSWER, 4),
    )
    advantages: list[Any] = [
        rng.normal(0.0, 1.0, len(s.token_ids)).astype(np.float32) if s.kind.sampled else None
        for s in segments
    ]
    return Sample(segments=segments, advantages=tuple(advantages), weights=(1, 1, 1, 0.5, 1, 0.5))
