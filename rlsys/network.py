"""Network interfaces of this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment variables that name the interface of a library's connections."""


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of every interface that has one, without the loopback interface."""
    import psutil

    return {
        name: address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    }


def interface_variables(address: str, found: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for the interface with `address`; those already set stay.

    By itself gloo takes the address to which the host name resolves. On many machines that is
    127.0.1.1, which no other node can reach. NCCL takes the first interface it finds.

    Args:
        address: by which the other nodes of the cluster know this one.
        found: what `interfaces` returns.
    """
    name = next((name for name, own in found.items() if own == address), None)
    if name is None:
        return {}
    return {variable: name for variable in VARIABLES if variable not in os.environ}
