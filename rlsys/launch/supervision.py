"""Keeps the engines of a run alive: notices a dead or hanging one, and brings it back.

    healthy   answers heartbeats, takes part in every weight sync
    suspect   has not answered for a while
    dead      its process or the engine inside is gone, or did not answer for generation.heartbeat_s
    restarting  Ray has started its process again, and it loads the model of the folder
    stale     it has a model, but not the current weights; it refuses requests
    healthy   it has received the current weights and has passed the canary

Who sends requests (actors.pools) needs no word from here: calls to a dead engine fail, and an
engine that is started again refuses requests until it is healthy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from ray.exceptions import RayTaskError

from actors.engine_state import Heartbeat
from actors.handles import ProcessDied
from actors.pools import GenerationPool
from rlsys.config import GenerationConfig
from rlsys.errors import EngineDied, EngineError, SyncError

if TYPE_CHECKING:
    from ray.actor import ActorHandle

BEAT_PAUSE_S: Final = 2.0
"""Between two heartbeats of an engine."""
LIFE_PAUSE_S: Final = 1.0
"""Between two questions to a process that Ray starts again."""
LIFE_LIMIT_S: Final = 10.0
"""How long one of them may take."""


GONE: Final = "died"
"""What is wrong with an engine whose actor ended."""
LEAVES: Final = "stands on a node that is drained"
"""Why an engine moves."""


class CurrentWeights(Protocol):
    """Where an engine gets the weights that the others have."""

    @property
    def publishing(self) -> bool:
        """True while weights travel to the engines."""
        ...

    async def catch_up(self, engine: int) -> int:
        """Bring the current weights to `engine`, which then serves; return their version."""
        ...


class Homes(Protocol):
    """Where engines stand, see rlsys.launch.homes."""

    @property
    def movable(self) -> bool:
        """True if an engine can move to another node."""
        ...

    def node(self, engine: int) -> str:
        """Return the id of the engine's node; empty while it waits for one."""
        ...

    def leaving(self, engine: int) -> bool:
        """True if the engine's node is drained."""
        ...

    def has_place(self, engine: int) -> bool:
        """True if the engine has a place on a node that lives."""
        ...

    def has_room(self, engine: int) -> bool:
        """True if a node that stays has room for the engine."""
        ...

    async def move(self, engine: int, old: ActorHandle) -> None:
        """End the engine's actor and start one with the same name on a node that stays."""
        ...


class EngineSupervisor:
    """Watches the engines of one pool; `watch` runs as long as the run."""

    def __init__(
        self,
        pool: GenerationPool,
        limits: GenerationConfig,
        *,
        homes: Homes | None = None,
        tell: Callable[[str], None],
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """Watch the engines of `pool`.

        Args:
            pool: the engines.
            limits: when an engine counts as dead, and how often it is started again.
            homes: where they stand; None if they never move.
            tell: takes a sentence about every event.
            moved: called when tokens were sampled.
        """
        self._pool = pool
        self._homes = homes
        self._limits = limits
        self._tell = tell
        self._moved = moved
        self._alive = set(range(len(pool.engines)))
        self._left = [limits.restarts] * len(pool.engines)
        self._restarts = 0
        self._lives: dict[int, str] = {}
        self._tokens = [0] * len(pool.engines)

    @property
    def restarts(self) -> int:
        """How often engines were started again so far."""
        return self._restarts

    @property
    def alive(self) -> int:
        """How many engines are healthy."""
        return len(self._alive)

    async def watch(self, weights: CurrentWeights | None) -> None:
        """Watch every engine until cancelled.

        Args:
            weights: where a restarted engine gets the current weights; None if these are the
                weights of its model folder.

        Raises:
            EngineError: fewer engines than generation.min_engines are left.
        """
        async with asyncio.TaskGroup() as tasks:
            for engine in range(len(self._pool.engines)):
                tasks.create_task(self._keep_alive(engine, weights))

    async def _keep_alive(self, engine: int, weights: CurrentWeights | None) -> None:
        while True:
            error = await self._until_down(engine, weights)
            node = self._node(engine)
            if error == LEAVES:
                failure = await self._move(engine, weights)
                if failure is None:
                    continue
                error = failure
            while self._left[engine]:
                self._left[engine] -= 1
                self._restarts += 1
                self._tell(
                    f"engine {engine} {error}; it is started again (restarts left: "
                    f"{self._left[engine]}), and its requests are sampled again with the same seeds"
                )
                failure = await self._bring_back(engine, weights, error)
                if failure is None:
                    # Whoever stood on a machine that failed is not to blame.
                    self._left[engine] += self._node(engine) != node
                    break
                error = failure
            else:
                self._give_up(engine, error)
                return

    def _node(self, engine: int) -> str:
        return "" if self._homes is None else self._homes.node(engine)

    async def _move(self, engine: int, weights: CurrentWeights | None) -> str | None:
        """Bring an engine to another node; return what went wrong, None if nothing did."""
        assert self._homes is not None
        self._tell(
            f"engine {engine} {LEAVES}; it is started on another node, and its requests are "
            "sampled again with the same seeds"
        )
        self._restarts += 1
        await self._homes.move(engine, self._pool.engines[engine].actor)
        return await self._bring_back(engine, weights, GONE)

    async def _until_down(self, engine: int, weights: CurrentWeights | None) -> str:
        """Return what is wrong with the engine, as soon as something is."""
        while (error := await self._problem(engine)) is None:
            if self._should_leave(engine, weights):
                error = LEAVES
                break
            await asyncio.sleep(BEAT_PAUSE_S)
        self._alive.discard(engine)
        self._pool.sink.leave(engine)
        return error

    def _should_leave(self, engine: int, weights: CurrentWeights | None) -> bool:
        """True if the engine should move now, because its node is drained."""
        homes = self._homes
        if homes is None or not homes.movable or not homes.leaving(engine):
            return False
        if weights is not None and weights.publishing:
            return False  # a death inside a broadcast costs the learner, too
        # The last engines stay as long as their node lives, unless another node has room for them.
        return self.alive > self._limits.min_engines or homes.has_room(engine)

    async def _problem(self, engine: int) -> str | None:
        """Ask the engine once; return what is wrong with it."""
        limit = self._limits.heartbeat_s
        if engine not in self._pool.sink.members:
            return "died during a weight sync"
        try:
            async with asyncio.timeout(limit):
                beat = await self._pool.engines[engine].heartbeat()
        except TimeoutError:
            return f"did not answer for generation.heartbeat_s {limit:g} s"
        except ProcessDied:
            return GONE
        except EngineDied:
            return "lost the processes of vLLM"
        if beat.silent_s > limit:
            return f"did not answer for generation.heartbeat_s {limit:g} s (vLLM hangs)"
        if self._lives.setdefault(engine, beat.life) != beat.life:
            return GONE
        self._count(engine, beat)
        return None

    def _count(self, engine: int, beat: Heartbeat) -> None:
        if beat.finished_tokens != self._tokens[engine]:
            self._tokens[engine] = beat.finished_tokens
            self._moved()

    async def _bring_back(
        self, engine: int, weights: CurrentWeights | None, error: str
    ) -> str | None:
        """Take the engine from dead to healthy; return what went wrong, None if nothing did."""
        limit, handle = self._limits.restart_s, self._pool.engines[engine]
        try:
            async with asyncio.timeout(limit) as deadline:
                await self._new_process(engine, deadline, gone=error == GONE)
                await handle.start(serve=weights is None)
            # Outside the limit: it waits for the end of a training step, and has its own deadline.
            version = None if weights is None else await weights.catch_up(engine)
        except TimeoutError:
            return f"did not serve again within generation.restart_s {limit:g} s"
        except (EngineDied, SyncError, RayTaskError) as failure:
            return f"did not come back ({' '.join(str(failure).split())})"
        self._pool.sink.join(engine)
        self._alive.add(engine)
        with_weights = "" if version is None else f" with the weights of version {version}"
        self._tell(f"engine {engine} serves again{with_weights}")
        return None

    async def _new_process(self, engine: int, deadline: asyncio.Timeout, *, gone: bool) -> None:
        """Return when a process answers that has loaded nothing yet.

        Args:
            engine: which one.
            deadline: is put off as long as no node has room for the engine.
            gone: True if the old process is known to be dead. Ray starts a new one without being
                asked, and to kill that one would only cost time.
        """
        handle, told, answered = self._pool.engines[engine], False, ""
        if not gone:
            handle.kill()
        while True:
            if self._homes is not None and not self._homes.has_place(engine):
                deadline.reschedule(asyncio.get_running_loop().time() + self._limits.restart_s)
                if not told and not self._homes.has_room(engine):
                    told = True
                    self._tell(f"engine {engine} waits for a node with room for it")
            with suppress(EngineDied, TimeoutError):
                async with asyncio.timeout(LIFE_LIMIT_S):
                    beat = await handle.heartbeat()
                if beat.life == self._lives.get(engine):
                    handle.kill()
                elif beat.life == answered:
                    self._lives[engine] = beat.life
                    return
                # Ray may tell of the old process's death after the new one has answered, and would
                # fail whatever is asked then. So a process counts once it has answered twice.
                answered = beat.life
            await asyncio.sleep(LIFE_PAUSE_S)

    def _give_up(self, engine: int, error: str) -> None:
        """Go on without the engine, or end the run if there are too few others."""
        possible = sum(left > 0 or e in self._alive for e, left in enumerate(self._left))
        wanted = self._limits.min_engines
        if possible < wanted:
            raise EngineError(
                f"engine {engine} {error}, after all {self._limits.restarts} restarts of "
                f"generation.restarts, and generation.min_engines is {wanted}; set "
                "RLSYS_ACTOR_LOGS=1 to see why, and give the same command again to go on from the "
                "last checkpoint"
            )
        self._tell(f"engine {engine} {error}; the run goes on with {self.alive} engines")
