"""Checks of what surrounds a run, before Ray starts: its address, folders and variables.

Every check returns a few words about what it found, or raises ResourceError with one sentence.
`rlsys doctor` shows all of them; a run stops at the first one that fails.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rlsys.errors import ResourceError
from rlsys.launch.resources import starts_local_ray
from rlsys.training.run_folder import cannot_write

CONNECT_SECONDS: Final = 10.0
"""How long a cluster may take to accept a connection, and then to answer; a busy head is slow."""
CLUSTER_ID: Final = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""The first call of every Ray process to the head of its cluster; it takes no arguments."""
LONGEST_SOCKET_PATH: Final = 107
"""Bytes of the longest path of a Unix socket on Linux."""
BLANK_MEANS_UNSET: Final = ("RAY_ADDRESS", "RAY_TMPDIR", "TMPDIR")
PROXIES: Final = (
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
)
BUSY_MIB: Final = 2048
"""A GPU is in use from here on; a desktop and idle contexts take less."""
NO_PROXY: Final = ("no_proxy", "NO_PROXY")
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

NOT_RAY: Final = "something else than Ray listens there"

ADDRESS_REMEDY: Final = (
    "set RAY_ADDRESS=HOST:6379 of a running cluster, RAY_ADDRESS=auto on a node of it, or unset "
    "RAY_ADDRESS to run on this machine alone"
)


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name and the function of every check that concerns this process."""
    yield "RAY_ADDRESS", check_address
    if starts_local_ray():
        yield "Ray's sockets", check_session_folder


def check_machine() -> None:
    """Make the variables fit for a run, then run every check. Raises ResourceError."""
    tidy_variables()
    for _, check in checks():
        check()


def tidy_variables() -> None:
    """Remove blank variables, and keep connections within this machine away from a proxy.

    A shell script often writes `RAY_ADDRESS=$HEAD` without a value for HEAD. Ray takes a blank
    RAY_TMPDIR for the current folder. The processes of the run inherit the variables.
    """
    for name in BLANK_MEANS_UNSET:
        if _blank(name):
            os.environ.pop(name, None)
        else:
            os.environ[name] = os.environ[name].strip()
    if not any(map(os.environ.get, PROXIES)):
        return
    # Some libraries read only one of the two names, so both get the hosts of both.
    listed = ",".join(os.environ.get(name, "") for name in NO_PROXY).split(",")
    hosts = dict.fromkeys([*filter(None, map(str.strip, listed)), *LOOPBACK])
    os.environ.update(dict.fromkeys(NO_PROXY, ",".join(hosts)))


def check_address() -> str:
    """Check that RAY_ADDRESS is the address of a cluster that answers."""
    if starts_local_ray():
        return "not set; a run starts a Ray of its own"
    asked = os.environ["RAY_ADDRESS"].strip()
    address = _cluster_here() if asked == "auto" else asked
    name = f"RAY_ADDRESS {asked!r}" + (f" (here {address})" if asked == "auto" else "")
    scheme, _, rest = address.rpartition("://")
    if scheme in ("http", "https"):
        raise ResourceError(
            f"{name} is the URL of a dashboard, which takes jobs and no drivers; use `rlsys submit "
            f"CONFIG.yaml --address {address}`, or set RAY_ADDRESS=auto on a node of the cluster"
        )
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if scheme not in ("", "ray") or not host or not port or parts.netloc != rest:
        raise ResourceError(f"{name} is no address of a Ray cluster; {ADDRESS_REMEDY}")
    if reason := _no_cluster_at(host, port):
        raise ResourceError(f"no Ray cluster answers at {name} ({reason}); {ADDRESS_REMEDY}")
    return f"{address} answers"


def _cluster_here() -> str:
    """Return the address of the Ray cluster that this machine is a node of."""
    from ray._private.services import get_ray_address_from_environment

    with suppress(ConnectionError):
        if address := get_ray_address_from_environment("auto", None):
            return str(address)
    raise ResourceError(
        "RAY_ADDRESS is 'auto', but no Ray cluster runs on this machine; start one with `ray start "
        "--head`, set RAY_ADDRESS=HOST:6379, or unset RAY_ADDRESS to run on this machine alone"
    )


def _no_cluster_at(host: str, port: int) -> str | None:
    """Return why no Ray can be joined there, or None.

    Ray itself tries for minutes, and then ends the process without a message.
    """
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS):
            pass
    except TimeoutError:
        return f"no answer within {CONNECT_SECONDS:g} s"
    except OSError as error:
        return str(error.strerror or error)
    if os.environ.get("RAY_USE_TLS", "0") in ("1", "true"):
        return None  # the call below would need the certificates
    import grpc

    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with grpc.insecure_channel(target, (("grpc.enable_http_proxy", 0),)) as channel:
        try:
            shown = (("authorization", f"Bearer {_token()}"),)
            channel.unary_unary(CLUSTER_ID)(b"", timeout=CONNECT_SECONDS, metadata=shown)
        except grpc.RpcError as error:
            return _refusal(error.code().name, error.details() or "")
    return None


def _refusal(code: str, details: str) -> str | None:
    """Return what the status of a gRPC call and its details say against a run, or None."""
    match code:
        case "UNAUTHENTICATED" if _auth_mode() in ("token", "disabled"):
            return (
                "it asks for another token, like the private Ray of another run; for a cluster of "
                "yours give RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            )
        case "DEADLINE_EXCEEDED":
            return f"no answer within {CONNECT_SECONDS:g} s"
        case "UNAVAILABLE":
            return NOT_RAY
        # gRPC's words for a server that speaks HTTP and not gRPC: a proxy, for instance, that
        # accepts connections to any address.
        case "UNIMPLEMENTED" if "http2 header" in details:
            return NOT_RAY
        case _:  # other versions of Ray may not know the call, and yet they answer
            return None


def _auth_mode() -> str:
    """Return how Ray shows who it is; `token` is its default."""
    return os.environ.get("RAY_AUTH_MODE", "token")


def _token() -> str:
    """Return the token that Ray shows to a cluster; empty if it shows none."""
    if _auth_mode() == "disabled":
        return ""
    if not _blank("RAY_AUTH_TOKEN"):
        return os.environ["RAY_AUTH_TOKEN"].strip()
    default = Path(os.path.expanduser("~")) / ".ray" / "auth_token"
    file = default if _blank("RAY_AUTH_TOKEN_PATH") else Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    try:
        return file.read_text(encoding="ascii", errors="ignore").strip()
    except OSError:
        return ""


def session_root() -> Path:
    """Return the folder in which a local Ray makes its folder `ray`."""
    set_to = (os.environ[name] for name in ("RAY_TMPDIR", "TMPDIR") if not _blank(name))
    return Path(next(set_to, "/tmp"))


def _blank(name: str) -> bool:
    """True if the variable is not set, or has no value."""
    return not os.environ.get(name, "").strip()


def check_session_folder() -> str:
    """Check that a local Ray can make its session folder, and that its sockets' paths fit."""
    root = session_root()
    name = "TMPDIR" if _blank("RAY_TMPDIR") and not _blank("TMPDIR") else "RAY_TMPDIR"
    longest = f"session_2026-01-01_00-00-00_000000_{os.getpid()}/sockets/plasma_store"
    room = LONGEST_SOCKET_PATH - len(f"/ray/{longest}")
    size = len(os.fsencode(root.absolute()))
    if size > room:
        raise ResourceError(
            f"{name} {str(root)!r} has {size} bytes, and the paths of Ray's sockets below it "
            f"would be longer than the {LONGEST_SOCKET_PATH} that Linux allows; set RAY_TMPDIR to "
            f"a folder of at most {room} bytes, for instance RAY_TMPDIR=/tmp"
        )
    if reason := cannot_write(root / "ray"):
        raise ResourceError(
            f"Ray cannot make its folder {str(root / 'ray')!r} ({reason}); set RAY_TMPDIR to a "
            "folder that you may write to"
        )
    return f"in {root / 'ray'}, whose path is short enough"


def unwritable_cache() -> str | None:
    """Return a sentence if the folder of compiled kernels cannot be written, else None.

    Runs on the CPU do without it. On GPUs, vLLM and Triton keep what they compile there.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache")
    if reason := cannot_write(folder):
        return (
            f"the cache folder {str(folder)!r} cannot be written ({reason}), and on GPUs vLLM and "
            "Triton keep compiled kernels there; set HOME or XDG_CACHE_HOME to a folder that you "
            "may write to, for instance XDG_CACHE_HOME=/tmp/cache"
        )
    return None


def busy_cards() -> str | None:
    """Return a sentence about the first visible GPU that other processes use; None if all are free.

    Another run on the same machine is the usual cause: each local Ray counts all GPUs as its own.
    """
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=index,memory.used,memory.total"]
    try:
        listed = subprocess.run(
            [*query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    for line in listed.stdout.splitlines():
        index, used, total = (part.strip() for part in line.split(","))
        shown = visible is None or index in visible.split(",")
        if shown and used.isdigit() and int(used) > BUSY_MIB:
            return (
                f"other processes use {used} of the {total} MiB of GPU {index}; wait for them, or "
                "choose other GPUs with CUDA_VISIBLE_DEVICES"
            )
    return None
