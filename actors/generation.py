"""The generation actor: one vLLM engine, from token ids to token ids with log-probs and versions.

A weight update is begin_update -> receive_... for every bucket -> finish_update -> verify. From the
first call to the end of the last one the actor does not serve: new requests wait, and results of
requests in flight are held back. An engine that received wrong weights therefore never returns a
token that they produced. Requests in flight are kept and go on under the new weights.

An actor that Ray started again after a death refuses requests until somebody has called `start`
and, in a training run, has brought it the current weights (rlsys.launch.supervision).
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

import numpy as np

from actors.admission import Admission
from actors.engine_state import (
    BusyTime,
    EngineCounts,
    Heartbeat,
    ignore_result,
    unless_dead,
)
from actors.sampled_logprobs import LogprobFetcher, Span, candidates, sampled_logprobs
from actors.stored_bucket import bucket_file
from actors.vllm_settings import (
    EngineSpec,
    engine_args,
    sampling_params,
    use_socket_folder_of_ray,
)
from actors.weight_receiver import WeightReceiver
from rlsys.errors import EngineDied, EngineError, SyncError
from rlsys.spans import span
from rlsys.types import Completion, Floats, GenerationRequest, Tokens
from rlsys.weights import Bucket, StoredBucket

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

P = ParamSpec("P")
T = TypeVar("T")
COMPILE_S = WeightReceiver.rlsys_compile_s.__name__


class GenerationActor:
    """A plain class; rlsys.launch makes a Ray actor of it."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._version = 0
        self._serving = asyncio.Event()
        self._admission = Admission(spec.max_sequences)
        self._ids = itertools.count()
        self._counts, self._busy = EngineCounts(), BusyTime()
        self._cache_block = 1
        self._engine: AsyncLLM | None = None
        self._life = uuid.uuid4().hex
        self._refusing = True
        self._updating = False
        self._calls: dict[object, float] = {}
        """Start times of the calls that the workers have not answered, see Heartbeat.silent_s."""
        self._check: asyncio.Task[None] | None = None
        self._finished_tokens = 0
        self._logprobs: LogprobFetcher | None = None
        """None if log-probs come with vLLM's own results."""

    async def start(self, serve: bool) -> dict[str, float]:
        """Load the engine; return the seconds of `import`, `load` and `compile`.

        Args:
            serve: True to serve with the weights of the model folder, as version 0. False where
                these are outdated: the actor serves after a weight update.
        """
        began = time.monotonic()
        from vllm.v1.engine.async_llm import AsyncLLM

        import_s = time.monotonic() - began
        use_socket_folder_of_ray()
        try:
            self._engine = AsyncLLM.from_engine_args(engine_args(self._spec))
        except Exception as error:
            raise EngineError(
                f"engine {self._spec.index} could not start ({' '.join(str(error).split())}); set "
                "RLSYS_ACTOR_LOGS=1 to see vLLM's own output"
            ) from error
        self._cache_block = int(self._engine.vllm_config.cache_config.block_size)
        await self._call_workers(WeightReceiver.rlsys_die_with_parent)
        # Of every tensor-parallel rank, and all of them can or none.
        if all(await self._rpc(self._engine, WeightReceiver.rlsys_keep_logprobs.__name__)):
            self._logprobs = LogprobFetcher(self._take_logprobs)
        compile_s = cast(float, (await self._rpc(self._engine, COMPILE_S))[0])
        # The first time takes long on a GPU, which loads its kernels. Others still load now; in the
        # first weight sync everybody would wait for it.
        await asyncio.gather(*map(self._score, self._spec.canary))
        if serve:
            self._serve()
        load_s = time.monotonic() - began - import_s - compile_s  # vLLM's own process imports, too
        return {"import": import_s, "load": load_s, "compile": compile_s}

    def _serve(self) -> None:
        self._refusing = False
        self._serving.set()

    async def node(self) -> str:
        """Return Ray's id of the node that the actor is on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    async def heartbeat(self) -> Heartbeat:
        """Report at once, whatever the engine does; raises EngineDied if the engine is gone."""
        if self._engine is not None and not self._updating:
            if self._engine.errored:
                raise self._death()
            if self._check is None or self._check.done():
                # Not awaited: the age of a check without an answer is what shows that an engine
                # hangs. It runs in the workers, so it also shows that one of them hangs.
                self._check = asyncio.create_task(self._call_workers(WeightReceiver.rlsys_answer))
                self._check.add_done_callback(ignore_result)
        return Heartbeat(
            life=self._life,
            serving=self._serving.is_set(),
            silent_s=time.monotonic() - min(self._calls.values(), default=time.monotonic()),
            finished_tokens=self._finished_tokens,
        )

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        """Return the n completions of every request, in request order."""
        return list(await asyncio.gather(*(self._generate_one(r) for r in requests)))

    async def _generate_one(self, request: GenerationRequest) -> list[Completion]:
        if self._refusing:
            raise EngineDied(f"engine {self._spec.index} was started again and has no weights yet")
        # A request that names its engine goes on from tokens that were sampled there.
        async with self._admission.admitted(request.n, begun=request.engine is not None):
            await self._serving.wait()
            # An update may come while the request runs; both ends of its span travel with the
            # tokens.
            first, params = self._version, sampling_params(request)
            with self._busy.request(), span(f"{request.n} samples of {request.max_tokens} tokens"):
                output = await self._finish(request.token_ids, params, first)
        logprobs = await sampled_logprobs(request, output, self._logprobs)
        # A request can end between finish_update and verify. Its last tokens then come from weights
        # that are not checked yet, so the result waits for the canary, for ever if that fails.
        await self._serving.wait()
        versions, cached = (first, self._version), output.num_cached_tokens or 0
        self._counts.prompt_tokens += len(request.token_ids)
        self._counts.cached_tokens += cached
        self._finished_tokens += sum(len(sample.token_ids) for sample in output.outputs)
        return [
            Completion(
                token_ids=np.asarray(sample.token_ids, np.int32),
                logprobs=np.ascontiguousarray(rows[:, 0]),
                stopped=sample.finish_reason == "stop",
                versions=versions,
                engine=self._spec.index,
                candidates=candidates(sample, rows) if request.top_logprobs else None,
                cached_tokens=cached,
                cache_block=self._cache_block,
            )
            for sample, rows in zip(output.outputs, logprobs, strict=True)
        ]

    async def _take_logprobs(self, spans: Sequence[Span]) -> bytes:
        with self._timed() as engine:
            parts = await self._rpc(engine, "rlsys_take_logprobs", [tuple(span) for span in spans])
        # Every tensor-parallel rank samples the same tokens.
        return cast(bytes, parts[0])

    async def _finish(
        self, token_ids: Tokens, params: SamplingParams, version: int
    ) -> RequestOutput:
        """Run one request to its end."""
        # The salt is part of every cache key. A request in flight goes on to fill the cache after
        # an update, with blocks that begin under the old weights; new requests must not find them.
        prompt = {"prompt_token_ids": token_ids.tolist(), "cache_salt": f"version-{version}"}
        request_id = str(next(self._ids))
        with self._named_death() as engine:
            async for output in engine.generate(prompt, params, request_id=request_id):
                if output.finished:
                    return output
        raise EngineError(f"engine {self._spec.index} ended request {request_id} unfinished")

    async def join_nccl(self, host: str, port: int, first_rank: int, world_size: int) -> None:
        """Bring the engine's workers into the learner's group, from rank `first_rank` on."""
        # Not counted as silence: it waits for all members of the group.
        with self._named_death() as engine:
            await self._rpc(engine, "rlsys_join_nccl", host, port, first_rank, world_size)

    async def begin_update(self) -> None:
        """Stop serving and freeze requests in flight.

        Raises EngineDied if an earlier update was left unfinished: the engine has to be restarted.
        """
        if self._updating:
            raise EngineDied(f"engine {self._spec.index} is in the middle of another update")
        self._updating = True
        # Before the first await: a request that arrives from here on belongs to the new weights.
        self._serving.clear()
        with self._timed() as engine:
            # `keep` freezes requests where they are. To abort them would cost the tokens they have,
            # and to wait for them would let the longest one hold up every engine. Their cache stays
            # too: without it all of them would be prefilled again, for seconds, before the canary.
            # The core is asked itself, because `pause_generation` sleeps 20 ms after it.
            pause = engine.engine_core.pause_scheduler_async(mode="keep", clear_cache=False)
            await self._answer(engine, pause)
        await self._call_workers(WeightReceiver.rlsys_begin)

    async def receive_files(self, paths: Sequence[str]) -> None:
        """Load buckets from safetensors files."""
        for path in paths:  # one call each, because a disk may be slow and silence is death
            await self._call_workers(WeightReceiver.rlsys_receive_file, path)

    async def receive_objects(self, buckets: Sequence[StoredBucket]) -> None:
        """Load buckets from Ray's object store; raises LearnerDied if one is lost."""
        for bucket in buckets:
            async with bucket_file(bucket) as path:
                await self.receive_files([path])

    async def receive_ipc(self, handles: Sequence[bytes], buckets: Sequence[Bucket]) -> None:
        """Load buckets from buffers on the engine's card."""
        await self._call_workers(WeightReceiver.rlsys_receive_ipc, handles, buckets)

    async def receive_nccl(self, buckets: Sequence[Bucket]) -> None:
        """Load buckets from the learner's broadcasts."""
        # Not counted as silence: the broadcasts wait for the learner.
        with self._named_death() as engine:
            await self._rpc(engine, "rlsys_receive_nccl", buckets)

    async def finish_update(self, version: int) -> None:
        """Make the received weights live as `version` and let frozen requests go on.

        New requests still wait: only `verify` opens the actor for them.
        """
        await self._call_workers(WeightReceiver.rlsys_finish)
        with self._timed() as engine:
            # Already here, because `verify` runs its sequences on this engine.
            await self._answer(engine, engine.resume_generation())
        self._version = version
        self._updating = False

    async def verify(
        self, sequences: Sequence[Tokens], logprobs: Sequence[Floats], tolerance: float
    ) -> float:
        """Compare with the learner and serve again; return the mean absolute gap in nats.

        Args:
            sequences: fixed prompts, the canary of rlsys.training.weight_sync.
            logprobs: per sequence [len - 1], the learner's log-prob of token i + 1 given the tokens
                before it, at temperature 1.
            tolerance: largest mean absolute gap in nats.

        Raises:
            SyncError: the gap exceeds the tolerance; the actor does not serve any more.
        """
        ours = await asyncio.gather(*(self._score(s) for s in sequences))
        gaps = [np.abs(a - b) for a, b in zip(ours, logprobs, strict=True)]
        gap = float(np.concatenate(gaps).mean())
        if not gap <= tolerance:  # in this form, because a NaN must fail too
            raise SyncError(
                f"engine {self._spec.index} differs from the learner by {gap:.2e} nats on the "
                f"canary prompts at version {self._version}, more than sync.canary_tolerance "
                f"{tolerance:.0e}; its weights arrived wrong and it does not serve"
            )
        self._serve()
        return gap

    async def _score(self, sequence: Tokens) -> Floats:
        """Log-prob of every token of `sequence` after the first, at temperature 1."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        output = await self._finish(sequence, params, self._version)
        rows = output.prompt_logprobs[1:]  # nothing comes before the first token, so it has none
        ids = sequence[1:].tolist()
        return np.asarray([row[i].logprob for i, row in zip(ids, rows, strict=True)], np.float32)

    async def counts(self) -> EngineCounts:
        """Totals so far."""
        return replace(self._counts, busy_s=self._busy.seconds)

    async def close(self) -> None:
        """Shut the engine's processes down; they outlive the actor otherwise."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()

    async def _call_workers(
        self,
        method: Callable[Concatenate[WeightReceiver, P], object],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call a WeightReceiver method in every worker; vLLM takes it by its name."""
        with self._timed() as engine:
            await self._rpc(engine, method.__name__, *args, **kwargs)

    async def _rpc(
        self, engine: AsyncLLM, method: str, *args: object, **kwargs: object
    ) -> list[object]:
        """Call a method in every worker."""
        call = engine.collective_rpc(method, args=args, kwargs=kwargs)
        return list(await self._answer(engine, call))

    async def _answer(self, engine: AsyncLLM, call: Awaitable[T]) -> T:
        return await unless_dead(call, lambda: engine.errored, self._death)

    @contextmanager
    def _timed(self) -> Iterator[AsyncLLM]:
        """Lend the engine for a call that takes little time, see Heartbeat.silent_s."""
        call = object()
        self._calls[call] = time.monotonic()
        try:
            with self._named_death() as engine:
                yield engine
        finally:
            del self._calls[call]

    @contextmanager
    def _named_death(self) -> Iterator[AsyncLLM]:
        """Lend the engine; turn the death of its own process into an error that names it."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield self._engine
        except EngineDeadError as error:
            raise self._death() from error

    def _death(self) -> EngineDied:
        return EngineDied(
            f"engine {self._spec.index} died; set RLSYS_ACTOR_LOGS=1 to see why, and give the "
            "same command again to go on from the last checkpoint"
        )
