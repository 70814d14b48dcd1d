"""Tree attention inside unmodified transformers models.

Rows come in depth-first order (learner.packing), so query q sees key k if and only if
k <= q < exits[k]. transformers passes a four-dimensional mask to the kernel unchanged: on the CPU
that is a dense boolean mask for SDPA, on CUDA a BlockMask for FlexAttention, which skips the blocks
in which nothing is visible. The trunk of the rows, the tokens before the first branch, is plain
causal attention, for which SDPA has a faster kernel.

Letters of shapes: R rows, T tokens of a row, B blocks of BLOCK tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.nn.attention.flex_attention import flex_attention

from learner.plan import coarse_step

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"""Tokens of a block of FlexAttention; rows on CUDA are padded to a multiple of it."""

HOPPER_TILES = {
    "fwd_BLOCK_M": 128,
    "fwd_BLOCK_N": 128,
    "fwd_num_warps": 8,
    "fwd_num_stages": 3,
    "bwd_BLOCK_M1": 64,
    "bwd_BLOCK_N1": 128,
    "bwd_BLOCK_M2": 128,
    "bwd_BLOCK_N2": 64,
    "bwd_num_warps": 8,
    "bwd_num_stages": 3,
}
"""The fastest tiles for heads of 128 channels by benchmarks/attention_speed.py on an H200; torch's
own choice is a fifth slower."""


def dense_trunk(trunk: int, tokens: int) -> int:
    """Return how many of `trunk` tokens the dense kernel gets, in rows of `tokens`.

    At least one block of every row is left to the other kernel. A short trunk gets none: it would
    not pay for a second kernel. Lengths come in steps of an eighth of the power of two below them:
    cuDNN, whose kernel is the fastest, prepares itself for every length that it has not seen.

    Example: dense_trunk(8108, 10_240) is 7680
    """
    longest = min(trunk, tokens - BLOCK)
    step = coarse_step(longest)
    dense = longest // step * step
    return dense if 2 * dense >= tokens else 0


def attention_implementation(device_type: str) -> str:
    """Return transformers' `attn_implementation` for a torch device type."""
    if device_type != "cuda":
        return "sdpa"
    from transformers import AttentionInterface

    AttentionInterface.register("rlsys_tree", tree_attention)
    return "rlsys_tree"


def tree_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: BlockMask,
    *,
    scaling: float | None = None,
    **_others: object,
) -> tuple[torch.Tensor, None]:
    """Tree attention as transformers calls it: [R, heads, T, channels] in, [R, T, ...] out.

    `attention_mask` is that of the last tokens of the rows. The tokens before these are the trunk
    (see `block_mask`), for which a dense kernel is the fastest.
    """
    # Copied to all query heads: the backward pass has one program per block of keys and key head,
    # and two key heads are too few for a card (benchmarks/attention_speed.py).
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    # From a shape: a number that is no shape would be compiled in, and every trunk compiled anew.
    trunk = query.shape[2] - BLOCK * attention_mask.kv_num_blocks.shape[-1]
    flex = flex_attention if torch.compiler.is_compiling() else _compiled_flex()
    branches = flex(
        query[:, :, trunk:],
        key,
        value,
        block_mask=attention_mask,
        scale=scaling,
        kernel_options=_tiles(query),
    )
    if trunk == 0:
        return branches.transpose(1, 2).contiguous(), None
    first = torch.nn.functional.scaled_dot_product_attention(
        query[:, :, :trunk],
        key[:, :, :trunk],
        value[:, :, :trunk],
        is_causal=True,
        scale=scaling,
    )
    return torch.cat([first, branches], dim=2).transpose(1, 2).contiguous(), None


def dense_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    *,
    scaling: float | None = None,
) -> tuple[torch.Tensor, None]:
    """The same by SDPA, with a dense mask.

    transformers' own version takes the ratio of query to key heads from the model. A rank of a
    sequence group may have another ratio.
    """
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None


def _tiles(query: torch.Tensor) -> dict[str, int] | None:
    """Return tile sizes, or None to leave them to torch."""
    measured = query.dtype == torch.bfloat16 and query.shape[-1] == 128
    if measured and torch.cuda.get_device_capability(query.device) == (9, 0):
        return HOPPER_TILES
    return None


@cache
def _compiled_flex() -> Callable[..., torch.Tensor]:
    compiled: Callable[..., torch.Tensor] = torch.compile(flex_attention)
    return compiled


def tree_mask(exits_RT: torch.Tensor, trunk: int = 0) -> torch.Tensor | BlockMask:
    """Return the mask of packed rows, for the device that `exits_RT` lies on.

    Args:
        exits_RT: [R, T] integers, end of every token's subtree (PackedRows.exits). On CUDA T is a
            multiple of BLOCK.
        trunk: number of tokens at the begin of every row without a branch between them, a multiple
            of BLOCK below T. They need no mask on CUDA, where the mask then is that of the others.

    Returns:
        A [R, 1, T, T] boolean tensor (True: visible) on the CPU, a BlockMask on CUDA.
    """
    return block_mask(exits_RT, trunk) if exits_RT.device.type == "cuda" else dense_mask(exits_RT)


def dense_mask(exits_RT: torch.Tensor) -> torch.Tensor:
    """Return the boolean mask [R, 1, T, T], query by key."""
    index_T = torch.arange(exits_RT.shape[1], device=exits_RT.device)
    causal_TT = index_T[:, None] >= index_T
    inside_RTT = index_T[:, None] < exits_RT[:, None, :]
    return (causal_TT & inside_RTT)[:, None]


def block_mask(exits_RT: torch.Tensor, trunk: int = 0) -> BlockMask:
    """Return FlexAttention's BlockMask of the queries behind the trunk; no T * T pairs ever exist.

    Depth-first order allows a decision per block from its exits alone. Below the diagonal a key
    block is visible in part if its largest exit lies behind the query block's first token, and in
    full if its smallest exit lies behind the query block's last token.
    """
    from torch.nn.attention.flex_attention import BlockMask

    rows, tokens = exits_RT.shape
    exits_RBK = exits_RT.view(rows, tokens // BLOCK, BLOCK)
    # Letters K: tokens of a block, Q: query blocks behind the trunk.
    index_B = torch.arange(tokens // BLOCK, device=exits_RT.device)
    index_Q = index_B[trunk // BLOCK :]
    below_QB = index_Q[:, None] > index_B
    diagonal_QB = index_Q[:, None] == index_B
    begin_Q1 = (index_Q * BLOCK)[:, None]  # first token of the query block
    # Below the diagonal every key comes before every query, so only q < exits[k] is left to check.
    some_RQB = below_QB & (exits_RBK.amax(-1)[:, None, :] > begin_Q1)
    full_RQB = below_QB & (exits_RBK.amin(-1)[:, None, :] >= begin_Q1 + BLOCK)
    # The kernel counts queries from 0. A tensor, because a number would be compiled in.
    places_T = torch.arange(trunk, tokens, device=exits_RT.device)

    def visible(
        b: torch.Tensor, _head: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        return (k <= places_T[q]) & (places_T[q] < exits_RT[b, k])

    # The kernel asks `visible` for every pair of a block in the first list and for none of the
    # second. The diagonal is always in the first, because there k <= q has to be checked too.
    return BlockMask.from_kv_blocks(
        *_ordered(diagonal_QB | (some_RQB & ~full_RQB)),
        *_ordered(full_RQB),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(tokens - trunk, tokens),
    )


def _ordered(chosen_RQB: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Per query block: number of chosen key blocks [R, 1, Q], blocks chosen first [R, 1, Q, B]."""
    # The kernel reads the first `number` entries of a list that has room for every block.
    chosen_R1QB = chosen_RQB[:, None].to(torch.int32)
    order_R1QB = chosen_R1QB.argsort(dim=-1, descending=True, stable=True)
    return chosen_R1QB.sum(-1, dtype=torch.int32), order_R1QB.to(torch.int32)
