"""Engines as Ray's driver sees them: processes that die, hang, and are started again by Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import numpy as np
from ray.exceptions import ActorDiedError, ActorUnavailableError

from actors.engine_state import EngineCounts, Heartbeat
from rlsys.errors import EngineDied, SyncError
from rlsys.types import Completion, GenerationRequest

AnyCoroutine = Coroutine[Any, Any, Any]


class Method:
    """What Ray puts in a method's place: `.remote(...)` returns something to await."""

    def __init__(self, function: Callable[..., AnyCoroutine]) -> None:
        self.remote = function


class EngineProcess:
    """The handle of a generation actor, with the states that a real one has."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lives = 0
        self.kills = 0
        self.dies_at: list[str] = []
        """Calls during which the process dies, one after the other."""
        self.hangs_at = ""
        """Calls from then on get no answer until the process is killed."""
        self.restartable = True
        self.waiting = False
        """True while Ray has no node for the process."""
        self.silent_s = 0.0
        self.lost = False
        """True if the actor lives and the engine inside is dead."""
        self.wrong_weights = 0
        """How many canaries fail."""
        self.requests: list[tuple[int, int]] = []
        """First token and seed of everything that was generated."""
        self._new_life()
        self.loaded = True
        self.serving = asyncio.Event()
        self.serving.set()
        self.refusing = False

    def _new_life(self) -> None:
        self.lives += 1
        self.life = f"{self.index}.{self.lives}"
        self.hanging = False
        self.loaded = False
        self.lost = False
        self.refusing = True
        self.updating = False
        self.serving = asyncio.Event()
        self.version = 0
        self.death = asyncio.Event()

    def die(self) -> None:
        """Fail every call in flight; Ray starts the next process if it may."""
        self.death.set()
        if self.restartable:
            self._new_life()

    def killed(self) -> None:
        self.kills += 1
        self.silent_s = 0.0  # the next process hangs only if a test says so again
        self.die()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Method(partial(self._called, name))

    async def _called(self, name: str, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        if self.death.is_set() or self.waiting:
            raise ActorDiedError
        death = self.death
        if name == self.hangs_at:
            self.hanging, self.hangs_at = True, ""
        if name in self.dies_at[:1]:
            self.dies_at.pop(0)
            self.die()
            raise ActorUnavailableError("gone", b"0" * 16)
        work = asyncio.ensure_future(
            asyncio.Event().wait() if self.hanging else getattr(self, f"_{name}")(*arguments)
        )
        gone = asyncio.ensure_future(death.wait())
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ActorUnavailableError("gone", b"0" * 16)
            return work.result()
        finally:
            work.cancel()
            gone.cancel()

    async def _heartbeat(self) -> Heartbeat:
        if self.lost:
            raise EngineDied(f"engine {self.index} died")
        return Heartbeat(
            life=self.life,
            serving=self.serving.is_set(),
            silent_s=self.silent_s,
            finished_tokens=len(self.requests),
        )

    async def _start(self, serve: bool) -> dict[str, float]:
        self.loaded = True
        if serve:
            self.refusing = False
            self.serving.set()
        return {"import": 0.1, "load": 0.2, "compile": 0.0}

    async def _generate(self, batch: Sequence[GenerationRequest]) -> list[list[Completion]]:
        if self.refusing or self.lost:
            raise EngineDied(f"engine {self.index} cannot serve")
        await self.serving.wait()
        await asyncio.sleep(0.002)
        self.requests += [(int(r.token_ids[0]), r.seed or 0) for r in batch]
        return [[self._completion(r)] * r.n for r in batch]

    def _completion(self, request: GenerationRequest) -> Completion:
        return Completion(
            token_ids=np.array([int(request.token_ids[0]), request.seed or 0], np.int32),
            logprobs=np.zeros(2, np.float32),
            stopped=True,
            versions=(self.version, self.version),
            engine=self.index,
        )

    async def _begin_update(self) -> None:
        assert self.loaded
        if self.updating:
            raise EngineDied("in the middle of another update")
        self.updating = True
        self.serving.clear()

    async def _receive_files(self, paths: Sequence[str]) -> None:
        assert self.updating

    async def _receive_nccl(self, buckets: Any) -> None:
        assert self.updating

    async def _join_nccl(self, host: str, port: int, first_rank: int, world_size: int) -> None:
        self.place = (first_rank, world_size)

    async def _finish_update(self, version: int) -> None:
        assert self.updating
        self.updating = False
        self.version = version

    async def _verify(self, sequences: Any, logprobs: Any, tolerance: float) -> float:
        if self.wrong_weights:
            self.wrong_weights -= 1
            raise SyncError(f"engine {self.index} differs from the learner")
        self.refusing = False
        self.serving.set()
        return 0.01 * (1 + self.index)

    async def _counts(self) -> EngineCounts:
        return EngineCounts(prompt_tokens=10, cached_tokens=self.index)

    async def _close(self) -> None:
        self.serving.clear()
