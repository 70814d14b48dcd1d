"""Tree attention inside unmodified transformers models: one mask, two kernels.

Rows come in depth-first order (learner.packing), so query q sees key k if and only if
k <= q < exits[k]. transformers hands a four-dimensional mask on to the kernel as it is: on the CPU
that is a dense boolean mask for SDPA, on CUDA a BlockMask for FlexAttention, which skips the blocks
in which nothing is visible.

Letters of shapes: R rows, T tokens of a row, B blocks of BLOCK tokens.
"""

from __future__ import annotations

from typing import Any

import torch

BLOCK = 128
"""FlexAttention's block: rows on CUDA are padded to a multiple of it."""


def attention_implementation(device_type: str) -> str:
    """Return transformers' `attn_implementation` for a torch device type."""
    return "flex_attention" if device_type == "cuda" else "sdpa"


def tree_mask(exits_RT: torch.Tensor) -> Any:
    """Return the mask of packed rows, for the device that `exits_RT` lies on.

    Args:
        exits_RT: [R, T] integers, end of every token's subtree (PackedRows.exits). On CUDA T is a
            multiple of BLOCK.

    Returns:
        A [R, 1, T, T] boolean tensor (True: visible) on the CPU, a BlockMask on CUDA.
    """
    return block_mask(exits_RT) if exits_RT.device.type == "cuda" else dense_mask(exits_RT)


def dense_mask(exits_RT: torch.Tensor) -> torch.Tensor:
    """Return the boolean mask [R, 1, T, T], query by key."""
    index_T = torch.arange(exits_RT.shape[1], device=exits_RT.device)
    causal_TT = index_T[:, None] >= index_T
    inside_RTT = index_T[:, None] < exits_RT[:, None, :]
    return (causal_TT & inside_RTT)[:, None]


def block_mask(exits_RT: torch.Tensor) -> Any:
    """Return FlexAttention's BlockMask without ever looking at T * T pairs.

    Depth-first order lets whole blocks be judged by their exits: below the diagonal a key block is
    visible in part if its largest exit reaches into the query block, and in full if its smallest
    exit reaches past it.
    """
    from torch.nn.attention.flex_attention import BlockMask

    rows, tokens = exits_RT.shape
    exits_RBK = exits_RT.view(rows, tokens // BLOCK, BLOCK)
    index_B = torch.arange(tokens // BLOCK, device=exits_RT.device)
    below_BB = index_B[:, None] > index_B
    diagonal_BB = index_B[:, None] == index_B
    begin_B1 = (index_B * BLOCK)[:, None]
    some_RBB = below_BB & (exits_RBK.amax(-1)[:, None, :] > begin_B1)
    full_RBB = below_BB & (exits_RBK.amin(-1)[:, None, :] >= begin_B1 + BLOCK)

    def visible(b: Any, _head: Any, q: Any, k: Any) -> Any:
        return (k <= q) & (q < exits_RT[b, k])

    return BlockMask.from_kv_blocks(
        *_ordered(diagonal_BB | (some_RBB & ~full_RBB)),
        *_ordered(full_RBB),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(tokens, tokens),
    )


def _ordered(chosen_RBB: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Per query block: number of chosen key blocks [R, 1, B], blocks chosen first [R, 1, B, B]."""
    chosen_R1BB = chosen_RBB[:, None].to(torch.int32)
    order_R1BB = chosen_R1BB.argsort(dim=-1, descending=True, stable=True)
    return chosen_R1BB.sum(-1, dtype=torch.int32), order_R1BB.to(torch.int32)
