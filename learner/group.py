"""The learner as the driver sees it: one typed, asynchronous object over N ranks.

The driver holds references and numbers. Every rank gets only the groups it trains on, straight from
the object store.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

import ray

from learner.checkpoint import replace_folder
from learner.handle import RankHandle
from learner.lost_nodes import lost_nodes_are_known
from learner.metrics import run_names
from learner.node_files import bring, fetch, ranks_apart, remove
from learner.plan import Size, make_plan
from learner.spec import LearnerSpec
from learner.sync import SyncSpec, import_nccl
from learner.worker import LearnerWorker
from rlsys.errors import LearnerDied
from rlsys.types import Floats, Sample, Tokens
from rlsys.weights import Bucket, SentPart

if TYPE_CHECKING:
    from ray.actor import ActorHandle

T = TypeVar("T")

DEATH_SECONDS: Final = 5.0
"""How long Ray may take to notice that a process died."""


class TrainGroup(Protocol):
    """Samples that stay together in one optimizer step."""

    @property
    def samples(self) -> Awaitable[tuple[Sample, ...]]:
        """Their reference in Ray's object store."""
        ...

    @property
    def sizes(self) -> Sequence[Size]:
        """Tokens and trained tokens of each of them, for a plan without looking at the samples."""
        ...


class StoredSamples(NamedTuple):
    """A TrainGroup of samples that the caller has in memory."""

    samples: Awaitable[tuple[Sample, ...]]
    sizes: Sequence[Size]

    @classmethod
    def put(cls, samples: Sequence[Sample]) -> StoredSamples:
        """Put samples into Ray's object store."""
        sizes = [(s.num_tokens, s.num_trained) for s in samples]
        return cls(ray.put(tuple(samples)), sizes)


class LearnerGroup:
    """All ranks of the learner: the Learner of the main loop, and the WeightSource of a sync.

    An exception of any rank surfaces at once; the caller then closes the group. Methods must not
    overlap, because each of them may run a collective on every rank.
    """

    def __init__(self, spec: LearnerSpec, options: Sequence[Mapping[str, object]]) -> None:
        """Start one actor per rank; `setup` comes before all else.

        Args:
            spec: what the ranks are told; `rank` is set here.
            options: Ray actor options (resources, placement) of every rank.
        """
        self._spec = spec
        self._options = options
        self._ranks = self._new_ranks()
        self._call: asyncio.Timeout | None = None
        self._why = ""

    def _new_ranks(self) -> list[RankHandle]:
        actor_class = ray.remote(LearnerWorker)
        return [
            RankHandle(
                rank,
                actor_class.options(**options).remote(dataclasses.replace(self._spec, rank=rank)),
            )
            for rank, options in enumerate(self._options)
        ]

    @classmethod
    async def start(
        cls, spec: LearnerSpec, options: Sequence[Mapping[str, object]]
    ) -> LearnerGroup:
        """Start one actor per rank and wait until the policy is loaded everywhere."""
        group = cls(spec, options)
        await group.setup()
        return group

    async def restart(self, options: Sequence[Mapping[str, object]]) -> None:
        """End all ranks, start new ones and load the policy of the start of the run.

        All of them, because a rank that lost another one may wait for it in a collective for ever.
        `options` are Ray actor options of every rank, as in the constructor.
        """
        self._kill()
        self._options = options
        await lost_nodes_are_known()
        self._ranks = self._new_ranks()
        await self.setup()

    @property
    def actors(self) -> list[ActorHandle]:
        """Ray handles of the ranks."""
        return [rank.actor for rank in self._ranks]

    async def setup(self) -> None:
        """Let the ranks meet on rank 0's node, and load the policy on each of them."""
        host, port = await self.address()
        await self._all(rank.setup(host, port) for rank in self._ranks)

    async def address(self) -> tuple[str, int]:
        """Return the address of rank 0's node and a free port on it."""
        ((host, port),) = await self._all([self._ranks[0].address()])
        return host, port

    async def node(self) -> str:
        """Return Ray's id of rank 0's node."""
        (node,) = await self._all([self._ranks[0].node()])
        return node

    async def step(self, groups: Sequence[TrainGroup]) -> dict[str, float]:
        """Train on a batch of groups; return LearnerWorker.step's metrics under a run's names."""
        plans = make_plan(
            [group.sizes for group in groups],
            row_tokens=self._spec.config.row_tokens,
            ranks=self._spec.config.data_parallel,
            optimizer_steps=self._spec.optimizer_steps,
        )
        # The ranks of a sequence group are neighbours and have the same plan.
        shared = [plan for plan in plans for _ in range(self._spec.config.sequence_ranks)]
        # Ray resolves references that are arguments themselves, not those inside a list.
        metrics = await self._all(
            rank.step(plan, *(groups[g].samples for g in plan.groups))
            for rank, plan in zip(self._ranks, shared, strict=True)
        )
        return run_names(metrics[0])  # the same on every rank

    async def sequence_logprobs(self, sequences: Sequence[Tokens]) -> list[Floats]:
        """Return, per sequence, the log-probs of its tokens but the first, at temperature 1."""
        # All ranks compute all of them: with ZeRO-3 a forward pass needs every rank.
        answers = await self._all(rank.sequence_logprobs(sequences) for rank in self._ranks)
        return answers[0]

    async def open_sync(self, spec: SyncSpec) -> list[Bucket]:
        """Prepare every rank to send weights; return the plan of buckets."""
        plans = await self._all(rank.open_sync(spec) for rank in self._ranks)
        return plans[0]

    async def import_nccl(self) -> None:
        """Let rank 0 import what `join_sync` needs for NCCL."""
        await self._ranks[0].on_node(import_nccl)

    async def join_sync(self, host: str) -> None:
        """Meet the engines' workers at rank 0, whose address is `host`."""
        await self._all(rank.join_sync(host) for rank in self._ranks)

    async def send(self) -> list[tuple[SentPart, ...]]:
        """Send the current weights; return, per bucket, what every rank left for the engines."""
        sent = await self._all(rank.send() for rank in self._ranks)
        return list(zip(*sent, strict=True))

    async def save(self, folder: Path) -> None:
        """Write a checkpoint to `folder`; all its files are on the driver's node in the end."""
        folder = folder.absolute()
        (apart,) = await self._all([ranks_apart(self._ranks, folder.parent)])
        # What a killed save left there would be fetched with the checkpoint.
        await self._all(remove(rank, folder.parent) for rank in apart)
        await self._all(rank.save(folder) for rank in self._ranks)
        await self._all(fetch(rank, folder, folder) for rank in apart)
        await self._all(remove(rank, folder.parent) for rank in apart)

    async def load(self, folder: Path) -> None:
        """Continue from a checkpoint; raises CheckpointError if it does not fit."""
        folder = folder.absolute()
        (apart,) = await self._all([ranks_apart(self._ranks, folder.parent)])
        await self._all(bring(rank, folder) for rank in apart)
        await self._all(rank.load(folder) for rank in self._ranks)
        await self._all(remove(rank, folder.parent) for rank in apart)

    async def export(self, folder: Path) -> None:
        """Write a Hugging Face folder of the current weights to the driver's node."""
        folder = folder.absolute()
        (writer,) = await self._all([ranks_apart(self._ranks[:1], folder.parent)])
        await self._all(rank.export(folder) for rank in self._ranks)
        for rank in writer:
            fetched = folder.with_name(folder.name + ".fetched")
            shutil.rmtree(fetched, ignore_errors=True)
            await self._all([fetch(rank, folder, fetched)])
            replace_folder(fetched, folder)
            await self._all([remove(rank, folder)])

    async def answers(self) -> bool:
        """Return True if every rank takes calls, so none hangs in the last one."""
        return all(await asyncio.gather(*(rank.answers() for rank in self._ranks)))

    def give_up(self, why: str) -> bool:
        """Let the call that runs raise LearnerDied(why), as if a rank had died.

        For ranks that hang: they raise nothing, and `restart` ends them. Returns False if no call
        runs.
        """
        if self._call is None:
            return False
        self._why = why
        self._call.reschedule(asyncio.get_running_loop().time())
        return True

    async def close(self) -> None:
        """End every rank and free its resources."""
        try:
            await asyncio.gather(*(rank.close() for rank in self._ranks))
        finally:
            # Also after the caller's time-out: a rank that waits for a dead one never returns.
            self._kill()

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.kill()

    async def _all(self, calls: Iterable[Awaitable[T]]) -> list[T]:
        """Return the results of one call on every rank; raises the first error at once.

        A rank that loses another one may raise an error of its own library before Ray knows of the
        death. So the others get some time to say that one of them died, which is the cause.
        """
        tasks = [asyncio.ensure_future(call) for call in calls]
        running = self._call = asyncio.timeout(None)  # `give_up` sets its end
        try:
            async with running:
                return await asyncio.gather(*tasks)
        except LearnerDied:
            raise
        except Exception as error:
            if running.expired():
                raise LearnerDied(self._why) from error
            await asyncio.wait(tasks, timeout=DEATH_SECONDS)
            for task in tasks:
                death = task.exception() if task.done() else None
                if isinstance(death, LearnerDied):
                    raise death from error
            raise
        finally:
            self._call = None
