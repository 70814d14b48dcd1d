"""A Ray session: joins the cluster it runs in, or starts a local one that is large enough."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from math import ceil
from typing import Any, TypeVar

import psutil
import ray

from rlsys.config import RunConfig, SftConfig
from rlsys.errors import ResourceError, RlsysError
from rlsys.launch.local_ray import closed_to_others
from rlsys.launch.machine import check_machine
from rlsys.launch.resources import Wanted, bundles, check_resources, starts_local_ray
from rlsys.launch.worker import RUN_MARK, prepare_worker
from rlsys.signals import (
    STOP_SIGNALS,
    call_on_signals,
    children_in_own_session,
    ignore_signals,
    interrupt_on_signals,
    renew_handlers,
)
from rlsys.training.stacks import run_processes

T = TypeVar("T")


@contextmanager
def ray_session(config: Wanted) -> Iterator[None]:
    """Connect to Ray for the time of the block.

    With RAY_ADDRESS set (inside a cluster or a submitted job) that cluster is joined. Otherwise a
    local one is started with as many logical cores as the run needs, whatever the machine has, so
    that a laptop with two cores can run one process of each kind.

    A run that reserves its places (rlsys.launch.placement) waits there for the nodes of a cluster.
    For every other use, what is there now must suffice.

    Raises:
        ResourceError: this machine or RAY_ADDRESS does not suit a run (rlsys.launch.machine), the
            cluster refuses the connection, or one of the bundles fits on no node.
    """
    check_machine()
    local = starts_local_ray()
    with closed_to_others() if local else nullcontext():
        _connect(config)
        interrupt_on_signals()  # ray.init has put a handler of its own for SIGTERM
        try:
            if local or not isinstance(config, RunConfig | SftConfig):
                check_resources(config, [dict(n["Resources"]) for n in ray.nodes() if n["Alive"]])
            yield
        finally:
            ray.shutdown()
            if local:
                _end_processes()
            # Its core worker puts the system's default in the place of every handler for SIGTERM.
            # A second SIGTERM during the second that the rest of ray.shutdown takes still kills.
            renew_handlers()


def _end_processes() -> None:
    """Kill what is left of the run: processes that an actor started and did not take with it.

    The compile workers of torch, for instance, need up to a minute to notice that the process which
    started them was killed.
    """
    for process in run_processes(RUN_MARK, str(os.getpid())):
        with suppress(psutil.Error):  # it has ended
            process.kill()


def _connect(config: Wanted) -> None:
    options: dict[str, Any] = {
        "log_to_driver": os.environ.get("RLSYS_ACTOR_LOGS", "0") == "1",
        "runtime_env": {
            "env_vars": {RUN_MARK: str(os.getpid())},
            "worker_process_setup_hook": prepare_worker,
        },
    }
    try:
        if starts_local_ray():
            cpus = ceil(sum(bundle.cpus for bundle in bundles(config)))
            with children_in_own_session():
                ray.init(address="local", num_cpus=cpus, include_dashboard=False, **options)
        else:
            _join(options)
    except SystemExit:  # what Ray's handler for SIGTERM raises
        raise KeyboardInterrupt from None


def _join(options: dict[str, Any]) -> None:
    """Connect to the cluster at RAY_ADDRESS. Raises ResourceError."""
    try:
        ray.init(**options)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ResourceError(
            f"the cluster at RAY_ADDRESS {os.environ['RAY_ADDRESS']!r} refuses this run "
            f"({reason}); use the versions of Python and Ray that it has, give its token in "
            "RAY_AUTH_TOKEN if it wants one, or unset RAY_ADDRESS to run on this machine alone"
        ) from None


def run(main: Coroutine[object, object, T], stop: Callable[[], None] | None = None) -> T:
    """Run `main` as asyncio.run does, but raise the cause inside an exception group by itself.

    The first stop signal calls `stop`, or cancels `main` if there is none; later ones do nothing.
    """
    try:
        return asyncio.run(_with_signals(main, stop))
    except BaseExceptionGroup as group:
        raise cause(group) from group
    except ray.exceptions.RayActorError as error:
        raise _death(error) from error


async def _with_signals(main: Coroutine[object, object, T], stop: Callable[[], None] | None) -> T:
    """Await `main`; the first stop signal calls `stop`, or cancels `main` if there is none."""
    task = asyncio.current_task()
    assert task is not None
    cancel = task.cancel
    asked = asyncio.Event()

    def ask() -> None:
        if not asked.is_set():  # a second signal must not disturb what the first one cleans up
            asked.set()
            (stop or cancel)()

    call_on_signals(ask)
    try:
        return await main
    except asyncio.CancelledError:
        if asked.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        # Before the event loop closes: it would put the system's default in the place of every
        # handler that is left, and a second signal would kill the command while it cleans up.
        loop = asyncio.get_running_loop()
        for sign in STOP_SIGNALS:
            loop.remove_signal_handler(sign)
        if asked.is_set():
            ignore_signals()
        else:
            interrupt_on_signals()


def cause(error: BaseException) -> BaseException:
    """Return the first RlsysError in a group, or its first error if there is none."""
    while isinstance(error, BaseExceptionGroup):
        ours, _ = error.split(RlsysError)
        error = (ours or error).exceptions[0]
    return _death(error) if isinstance(error, ray.exceptions.RayActorError) else error


def _death(error: ray.exceptions.RayActorError) -> RlsysError:
    """Return Ray's error about a dead process as one sentence with the remedy."""
    return RlsysError(
        "a process of the run died; give the same command again to go on from the last checkpoint "
        f"({' '.join(str(error).split())})"
    )
