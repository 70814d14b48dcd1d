"""Random token trees packed into rows, and what a tiny model says of their paths run alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from learner.packing import PackedRows, flatten, pack_rows
from rlsys.types import NO_PARENT, Kind, Sample, Segment

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
ARCHITECTURES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class Forest:
    """Trees packed into rows, and every segment as the sequence that leads to its end."""

    rows: PackedRows
    stems: list[np.ndarray]
    """Token ids before each segment of each tree."""
    owns: list[np.ndarray]
    """Token ids of each segment."""
    places: list[tuple[int, np.ndarray]]
    """Row of each segment and places of its tokens within the row."""


def grow(seed: int, rows: int = 2, trees: int = 4, row_tokens: int = 256) -> Forest:
    """Random trees of up to eight segments, deep and wide, some segments empty."""
    rng = np.random.default_rng(seed)
    packed, stems, owns, places = [], [], [], []
    for r in range(rows):
        row, start = [], 0
        for _ in range(trees):
            segments: list[Segment] = []
            paths: list[np.ndarray] = []
            for s in range(rng.integers(2, 9)):
                parent = int(rng.integers(max(0, s - 3), s)) if s else NO_PARENT
                cut = int(rng.integers(len(segments[parent].token_ids) + 1)) if s else 0
                length = int(rng.integers(0, 9)) if s else 4
                stem = np.zeros(0, int)
                if s:
                    before = len(paths[parent]) - len(segments[parent].token_ids)
                    stem = paths[parent][: before + cut]
                own = rng.integers(0, 61, length).astype(np.int32)
                paths.append(np.concatenate([stem, own]))
                kind = Kind(int(rng.choice([1, 2, 3, 4]))) if s else Kind.PROMPT
                logprobs = np.zeros(length, np.float32) if kind.sampled else None
                segments.append(
                    Segment(parent=parent, cut=cut, kind=kind, token_ids=own, logprobs=logprobs)
                )
                stems.append(stem)
                owns.append(own)
            # Flattened a second time with segment numbers in the ids: where did every token go?
            ids = [np.arange(len(s.token_ids)) + 100 * i for i, s in enumerate(segments)]
            numbered = flatten(relabelled(segments, ids)).token_ids
            places += [(r, start + np.flatnonzero(numbered // 100 == i)) for i in range(len(ids))]
            row.append(flatten(relabelled(segments, [s.token_ids for s in segments])))
            start += len(numbered)
        packed.append(row)
    return Forest(pack_rows(packed, row_tokens), stems, owns, places)


def thought_with_answers(tokens: int) -> Sample:
    """A thought with answers of three tokens, two at a third and two at two thirds of it."""
    rng = np.random.default_rng(tokens)

    def segment(parent: int, cut: int, kind: Kind, length: int) -> Segment:
        own = rng.integers(0, 61, length).astype(np.int32)
        logprobs = np.zeros(length, np.float32)
        return Segment(parent=parent, cut=cut, kind=kind, token_ids=own, logprobs=logprobs)

    cuts = (tokens // 3, tokens // 3, 2 * tokens // 3, 2 * tokens // 3)
    answers = [segment(0, cut, Kind.ANSWER, 3) for cut in cuts]
    segments = (segment(NO_PARENT, 0, Kind.THOUGHT, tokens), *answers)
    return Sample(segments=segments, advantages=(None,) * len(segments))


def relabelled(segments: list[Segment], token_ids: list[np.ndarray]) -> Sample:
    renamed = tuple(
        Segment(parent=s.parent, cut=s.cut, kind=s.kind, token_ids=ids, logprobs=s.logprobs)
        for s, ids in zip(segments, token_ids, strict=True)
    )
    return Sample(segments=renamed, advantages=(None,) * len(renamed))


def inputs(rows: PackedRows, device: str = "cpu") -> tuple[torch.Tensor, ...]:
    """Positional arguments of PolicyModel.forward, every token selected."""
    fields = (rows.token_ids, rows.positions, rows.parents, rows.exits, rows.trees >= 0)
    return tuple(torch.from_numpy(field).to(device) for field in fields)


def paths_alone(
    model: PreTrainedModel, forest: Forest, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies [R, T] from one plain causal run per segment."""
    logprobs_RT = torch.zeros(forest.rows.token_ids.shape, device=model.device)
    entropy_RT = torch.zeros_like(logprobs_RT)
    for stem, own, (r, at) in zip(forest.stems, forest.owns, forest.places, strict=True):
        path = torch.from_numpy(np.concatenate([stem, own]))[None].to(model.device)
        first = max(len(stem), 1)
        if len(own) == 0 or first == path.shape[1]:
            continue
        logits = model(input_ids=path, use_cache=False).logits[0].float() / temperature
        logp = torch.log_softmax(logits[first - 1 : -1], dim=-1)
        index = (torch.tensor(r), torch.from_numpy(at[first - len(stem) :]))
        logprobs_RT = logprobs_RT.index_put(index, logp.gather(1, path[0, first:, None])[:, 0])
        entropy_RT = entropy_RT.index_put(index, -(logp.exp() * logp).sum(-1))
    return logprobs_RT, entropy_RT


def tiny_config(name: str, head_dim: int = 32) -> PreTrainedConfig:
    """Two layers, four heads on two key-value heads; qwen2 ties its embeddings."""
    match name:
        case "llama":
            return LlamaConfig(**SHAPE, head_dim=head_dim)
        case "qwen2":
            return Qwen2Config(**SHAPE, head_dim=head_dim, tie_word_embeddings=True)
    return Qwen3Config(**SHAPE, head_dim=head_dim)


def tiny_model(name: str, head_dim: int = 32, attention: str = "sdpa") -> PreTrainedModel:
    """A random model; the same one for the same name and head size."""
    torch.manual_seed(0)
    config = tiny_config(name, head_dim)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).train()
