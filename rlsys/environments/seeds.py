"""Seeds of requests. They depend on what is sampled, never on the time or the process."""

from __future__ import annotations

import hashlib

SEED_BITS = 62
"""Engines take signed 64-bit seeds and add the index of the sample. 62 bits leave room for that."""


def derive_seed(run_seed: int, *path: int | str) -> int:
    """Return the seed of one request, e.g. derive_seed(run, problem index, "answer", episode, cut).

    The same path gives the same seed in every process and on every machine.
    """
    text = "/".join(str(part) for part in (run_seed, *path))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - SEED_BITS)
