"""Packed rows as plain sequences, for models that cannot read a packed tree.

A sliding window counts the tokens before a query, and a linear attention layer carries a state from
token to token. In a packed row both would take in tokens of other branches. Here every path from a
root to a leaf becomes a row of its own, which any causal model reads correctly. A token that
several paths share is computed in each of them and used from the first, so log-probs, loss and
gradients are those of the packed row.

Letters of shapes: R packed rows, T tokens of a packed row, P paths, L tokens of the longest path.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rlsys.types import NO_PARENT


class Paths(NamedTuple):
    """The paths of packed rows, and where the tokens of the rows are found in them."""

    token_ids_PL: torch.Tensor
    """Padded with 0 on the right, where no token of a causal model can see the padding."""
    places_RT: torch.Tensor
    """Index of every token in the flattened paths; 0 for tokens that no wanted token follows."""


def unpack_paths(
    token_ids_RT: torch.Tensor,
    parents_RT: torch.Tensor,
    exits_RT: torch.Tensor,
    select_RT: torch.Tensor,
) -> Paths:
    """Return the paths that hold the predecessors of all selected tokens.

    The arguments are those of PolicyModel.forward. There is at least one path, so that every rank
    runs the model: with ZeRO-3 all ranks must take part in each pass.
    """
    ids_RT, parents, exits, select = (
        tensor.cpu().numpy() for tensor in (token_ids_RT, parents_RT, exits_RT, select_RT)
    )
    paths: list[NDArray[np.int32]] = []
    found: list[tuple[int, NDArray[np.intp]]] = []
    for row in range(len(ids_RT)):
        for indices in _row_paths(parents[row], exits[row], select[row]):
            paths.append(ids_RT[row, indices])
            found.append((row, indices))
    width = max((len(path) for path in paths), default=1)
    token_ids_PL = np.zeros((max(len(paths), 1), width), ids_RT.dtype)
    places_RT = np.zeros(ids_RT.shape, np.int64)
    # From the last path to the first, so that the first one that holds a token decides its place.
    for number in range(len(paths) - 1, -1, -1):
        row, indices = found[number]
        token_ids_PL[number, : len(indices)] = paths[number]
        places_RT[row, indices] = number * width + np.arange(len(indices))
    device = token_ids_RT.device
    return Paths(torch.from_numpy(token_ids_PL).to(device), torch.from_numpy(places_RT).to(device))


def _row_paths(
    parents_T: NDArray[np.int32], exits_T: NDArray[np.int32], select_T: NDArray[np.bool_]
) -> list[NDArray[np.intp]]:
    """Return, per leaf, the indices of the tokens on its path, as far as they are needed."""
    index_T = np.arange(len(parents_T))
    needed_T = np.zeros(len(parents_T), np.bool_)
    needed_T[parents_T[select_T & (parents_T != NO_PARENT)]] = True
    paths = []
    # Deeper tokens come later in a row. So the last needed token ends a path, and what its path
    # holds needs no other one.
    while needed_T.any():
        last = int(index_T[needed_T][-1])
        # The tokens that `last` sees in the packed row are those of its path.
        path = np.flatnonzero((index_T <= last) & (exits_T > last))
        needed_T[path] = False
        paths.append(path)
    return paths[::-1]
