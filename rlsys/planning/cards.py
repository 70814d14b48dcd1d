"""GPUs by name: memory, arithmetic and bandwidth, from the makers' data sheets."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from typing import Final

from rlsys.errors import ConfigError

GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU."""

    name: str
    memory_gib: float
    """Total memory as nvidia-smi reports it."""
    flops: float
    """Dense bfloat16 operations per second, without sparsity."""
    bandwidth: float
    """Bytes per second from and to its own memory."""
    link: float
    """Bytes per second to another card of the host, one direction: NVLink, or PCIe without it."""

    @property
    def memory(self) -> int:
        """Total memory in bytes."""
        return int(self.memory_gib * GIB)

    def operations(self, itemsize: int) -> float:
        """Operations per second at most on numbers of `itemsize` bytes.

        float32 runs without tensor cores: 67 instead of 989 TFLOP/s on an H100, 19.5 instead of 312
        on an A100.
        """
        return self.flops if itemsize == 2 else self.flops / 15


CARDS: Final = {
    card.name: card
    for card in (
        Card(name="h100", memory_gib=79.6, flops=989e12, bandwidth=3.35e12, link=450e9),
        Card(name="h200", memory_gib=140.4, flops=989e12, bandwidth=4.8e12, link=450e9),
        Card(name="b200", memory_gib=179.1, flops=2250e12, bandwidth=8e12, link=900e9),
        Card(name="a100", memory_gib=80.0, flops=312e12, bandwidth=2.04e12, link=300e9),
        Card(name="a100-40", memory_gib=40.0, flops=312e12, bandwidth=1.56e12, link=300e9),
        Card(name="l40s", memory_gib=45.0, flops=362e12, bandwidth=0.86e12, link=32e9),
        Card(name="l4", memory_gib=22.5, flops=121e12, bandwidth=0.3e12, link=32e9),
        Card(name="a10", memory_gib=22.5, flops=125e12, bandwidth=0.6e12, link=32e9),
        Card(name="rtx4090", memory_gib=24.0, flops=165e12, bandwidth=1.01e12, link=32e9),
    )
}
"""Data sheets of NVIDIA, SXM variants of H100, H200, B200 and A100."""

DEFAULT: Final = CARDS["h100"]
"""Whose speed is assumed for a card that is known by its size alone."""


def card_named(text: str) -> Card:
    """Return the card for a name of CARDS, or for a number of GiB with the speed of DEFAULT.

    Raises ConfigError for anything else.

    Example: card_named("48").memory_gib is 48.0
    """
    if card := CARDS.get(text.lower()):
        return card
    try:
        memory = float(text)
    except ValueError:
        memory = 0.0
    if not 0 < memory < 10_000:
        raise ConfigError(
            f"--card {text!r} is neither a known card nor a number of GiB; use one of "
            f"{', '.join(CARDS)}, or for instance --card 48"
        )
    return replace(DEFAULT, name=f"{memory:g} GiB", memory_gib=memory)


def local_cards() -> list[Card]:
    """Return the GPUs of this machine as nvidia-smi lists them; none where it is not installed."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [_listed(line) for line in listed.stdout.splitlines() if "," in line]


def known_card(name: str, memory_gib: float) -> Card | None:
    """Return the entry of CARDS for a name such as `NVIDIA H100 80GB HBM3`; None if there is none.

    The memory tells the two sizes of the A100 apart.
    """
    words = set(re.findall(r"[a-z0-9]+", name.lower().replace("rtx ", "rtx")))
    # The longest name first, so that a name which contains another one wins.
    known = next((CARDS[key] for key in sorted(CARDS, key=len, reverse=True) if key in words), None)
    return CARDS["a100-40"] if known is CARDS["a100"] and memory_gib < 50 else known


def _listed(line: str) -> Card:
    """Return the card of a line such as `NVIDIA H100 80GB HBM3, 81559`."""
    name, _, mebibytes = line.rpartition(",")
    memory = int(mebibytes) / 1024
    known = known_card(name, memory)
    return replace(known or DEFAULT, name=known.name if known else name, memory_gib=memory)
