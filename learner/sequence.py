"""Sequence parallelism: several ranks share every row (DeepSpeed-Ulysses, arXiv 2309.14509).

Each rank of a sequence group runs the layers on its own part of the tokens of a row. Attention is
the only step that needs other tokens, and it treats every head alone. So an all-to-all before it
gives each rank all tokens of some heads, and one after it gives each rank all heads of its own
tokens. Between the two, the tree mask is that of the whole row.

Letters of shapes: R rows, T tokens of a row, N ranks of a sequence group, S tokens of a rank's part
(T / N), H heads, h heads of a rank (H / N), D channels of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from learner.attention import dense_attention, tree_attention

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.nn.attention.flex_attention import BlockMask


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """The ranks that share rows with this one, in the order of their parts."""

    process_group: ProcessGroup
    size: int
    """N."""
    rank: int
    """The number of this rank within the group."""

    def part(self, tokens: int) -> slice:
        """Return the places of this rank's tokens in a row; `tokens` is a multiple of `size`."""
        length = tokens // self.size
        return slice(self.rank * length, (self.rank + 1) * length)

    def join(self, values_RT: torch.Tensor, own_RT: torch.Tensor) -> torch.Tensor:
        """Return the values of all ranks; each has its own at `own_RT` and 0 elsewhere.

        Gradients flow to this rank's own values only. Every rank computes the loss of the whole row
        from the result, so the parts of the gradient add up over the group to that of one loss.
        """
        total_RT = values_RT.detach().clone()
        torch.distributed.all_reduce(total_RT, group=self.process_group)
        return torch.where(own_RT, values_RT, total_RT)


def join_sequence_group(size: int) -> SequenceGroup | None:
    """Return this rank's group of `size` neighbours, None for 1; all ranks call it together."""
    if size == 1:
        return None
    # Neighbours, because Ray fills one node with ranks after the other.
    process_group, _ = torch.distributed.new_subgroups(size)
    return SequenceGroup(process_group, size, torch.distributed.get_rank(process_group))


def shared_attention_implementation(group: SequenceGroup) -> str:
    """Return transformers' `attn_implementation` for rows that a group shares.

    It is known to transformers under one name, so a process has at most one group.
    """
    from transformers import AttentionInterface

    AttentionInterface.register("rlsys_sequence", partial(sequence_attention, group=group))
    return "rlsys_sequence"


def sequence_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | BlockMask,
    *,
    group: SequenceGroup,
    scaling: float | None = None,
    **_others: object,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it: [R, H, S, D] in, [R, S, H, D] out.

    `attention_mask` is that of whole rows, [R, 1, T, T]. The number of query heads is a multiple of
    the group's size; key heads may be fewer.
    """
    # The fewest copies that can be divided. A rank then holds just the key heads of its queries.
    copies = group.size // math.gcd(key.shape[1], group.size)
    key, value = key.repeat_interleave(copies, dim=1), value.repeat_interleave(copies, dim=1)
    parts = (query, key, value)
    # One exchange for all three: the time of a small one is mostly its start.
    received = _all_to_all(send_heads(parts, group.size), group)
    sizes = [part.shape[1] // group.size for part in parts]
    query, key, value = receive_heads(received, sizes)
    kernel = tree_attention if query.device.type == "cuda" else dense_attention
    out_RThD, _ = kernel(module, query, key, value, attention_mask, scaling=scaling)
    return receive_tokens(_all_to_all(send_tokens(out_RThD, group.size), group)), None


def send_heads(parts: tuple[torch.Tensor, ...], ranks: int) -> torch.Tensor:
    """Return what every rank gets of [R, H, S, D] arrays, which may differ in H.

    Returns:
        [N, R, h, S, D], where h counts the heads of all arrays that go to one rank.
    """
    split = [part.unflatten(1, (ranks, -1)) for part in parts]
    return torch.cat(split, dim=2).movedim(1, 0).contiguous()


def receive_heads(received: torch.Tensor, sizes: list[int]) -> tuple[torch.Tensor, ...]:
    """Return the [R, h, T, D] arrays in what came from every rank, `sizes` being their h."""
    whole_RhTD = received.movedim(0, 2).flatten(2, 3)
    arrays: tuple[torch.Tensor, ...] = whole_RhTD.split(sizes, dim=1)
    return arrays


def send_tokens(out_RThD: torch.Tensor, ranks: int) -> torch.Tensor:
    """Return what every rank gets of the outputs of this rank's heads: [N, R, S, h, D]."""
    return out_RThD.unflatten(1, (ranks, -1)).movedim(1, 0).contiguous()


def receive_tokens(received: torch.Tensor) -> torch.Tensor:
    """Return the outputs of all heads for this rank's tokens, [R, S, H, D]."""
    return received.movedim(0, 2).flatten(2, 3)


def _all_to_all(sent: torch.Tensor, group: SequenceGroup) -> torch.Tensor:
    """Send `sent[n]` to rank n; its gradient makes the way back."""
    # torch's deprecation of torch.distributed.nn names this module. It also works in a compiled
    # layer, where an autograd function of our own would break the graph.
    from torch.distributed import _functional_collectives as collectives

    received = collectives.all_to_all_single_autograd(sent, None, None, group.process_group)
    return collectives.wait_tensor(received)
