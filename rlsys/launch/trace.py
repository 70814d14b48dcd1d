"""The trace of some training steps: what every process did, for ui.perfetto.dev.

    run_dir/trace/spans.json             driver, environments, engines, ranks: one row per process
                  learner-rank-0.json.gz torch.profiler of the first rank: operations and kernels

Both have Unix times, but each file is opened by itself. Recording begins after the first step of a
start, because that one compiles, and ends after `reporting.trace_steps` further steps.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ray.exceptions import RayActorError

from rlsys import spans
from rlsys.spans import Span
from rlsys.training.durable import naming

if TYPE_CHECKING:
    import torch
    from ray.actor import ActorHandle

TRACE: Final = "trace"
DRIVER: Final = "driver"
FIRST_RANK: Final = "learner rank 0"

_profile: torch.profiler.profile | None = None
"""Of the first rank, in its process."""


class Tracer:
    """Starts the recording in all processes and writes what they return."""

    def __init__(
        self,
        run_dir: Path,
        steps: int,
        actors: Callable[[], Mapping[str, ActorHandle]],
        tell: Callable[[str], None],
    ) -> None:
        """Trace `steps` training steps; 0 traces nothing.

        Args:
            run_dir: gets the folder `trace`.
            steps: reporting.trace_steps.
            actors: returns every actor of the run by name.
            tell: takes the sentence that names the files.
        """
        self._folder = run_dir / TRACE
        self._steps = steps
        self._actors = actors
        self._tell = tell
        self._last: int | None = None
        """The last step of the trace; None before it begins."""

    async def after_step(self, step: int) -> None:
        """Begin or end the trace if it is time; the main loop calls this after every step."""
        if self._last is None and self._steps:
            self._last = step + self._steps
            spans.start()
            await self._everywhere(_start)
        elif step == self._last:
            found = await self._everywhere(_take)
            operations = found[FIRST_RANK][1]
            recorded = {DRIVER: spans.take()} | {name: part for name, (part, _) in found.items()}
            await asyncio.to_thread(self._write, recorded, operations)
            self._tell(
                f"the trace of steps {step - self._steps + 1} to {step} is in {self._folder}; "
                "open its files at https://ui.perfetto.dev"
            )

    async def _everywhere(self, function: Callable[..., Any]) -> dict[str, Any]:
        async def call(name: str, actor: ActorHandle) -> Any:
            try:
                return await actor.__ray_call__.remote(function, name == FIRST_RANK)
            except RayActorError:  # it is started again, and has recorded nothing
                return [], b""

        actors = self._actors()
        found = await asyncio.gather(*(call(name, actor) for name, actor in actors.items()))
        return dict(zip(actors, found, strict=True))

    def _write(self, recorded: Mapping[str, Sequence[Span]], operations: bytes) -> None:
        with naming(self._folder):
            self._folder.mkdir(exist_ok=True)
            text = json.dumps({"traceEvents": trace_events(recorded)})
            (self._folder / "spans.json").write_text(text, encoding="utf-8")
            if operations:
                (self._folder / "learner-rank-0.json.gz").write_bytes(operations)


def trace_events(recorded: Mapping[str, Sequence[Span]]) -> list[dict[str, Any]]:
    """Return spans by process as events of Chrome's trace format, in microseconds.

    They are asynchronous events, one row per process: requests and groups overlap, and events of
    the plain kind must be nested.
    """
    events: list[dict[str, Any]] = []
    for process, (name, found) in enumerate(recorded.items()):
        label = {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}
        events.append(label)
        for number, span in enumerate(found):
            common = {"name": span.name, "cat": name, "pid": process, "id": f"{process}.{number}"}
            end_s = span.begin_s + span.seconds
            for kind, moment_s in (("b", span.begin_s), ("e", end_s)):
                events.append(common | {"ph": kind, "ts": moment_s * 1e6})
    return events


def _start(actor: object, profiled: bool) -> None:
    """Begin to record, in the process of an actor."""
    global _profile
    spans.start()
    if profiled:
        from torch.profiler import profile

        _profile = profile()
        _profile.start()


def _take(actor: object, profiled: bool) -> tuple[list[Span], bytes]:
    """End the recording; return spans and, of the first rank, the trace of torch as gzip."""
    global _profile
    # An actor that was started again meanwhile has recorded nothing.
    operations, stopped, _profile = b"", _profile, None
    if stopped is not None:
        stopped.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            stopped.export_chrome_trace(str(path))
            operations = gzip.compress(path.read_bytes(), 6)
    return spans.take(), operations
