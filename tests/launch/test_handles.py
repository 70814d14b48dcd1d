"""Handles against the actors they stand for: the same methods, parameters and results."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from actors.generation import GenerationActor
from actors.handles import EngineHandle
from learner.handle import RankHandle
from learner.worker import LearnerWorker
from rlsys.errors import EngineError, TrainingError

PAIRS = [(EngineHandle, GenerationActor), (RankHandle, LearnerWorker)]
NO_CALLS = {"kill"}
"""Methods of a handle that end the actor instead of calling it."""


class Recorder:
    """A Ray handle whose methods note the call and return what `result` does."""

    def __init__(self, result: Awaitable[Any]) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._result = result

    def __getattr__(self, name: str) -> Any:
        class Method:
            @staticmethod
            def remote(*args: Any) -> Awaitable[Any]:
                self.calls.append((name, args))
                return self._result

        return Method


def methods(handle: type) -> dict[str, inspect.Signature]:
    """Signatures of the public methods, as they are written.

    ray.remote adds a parameter to the methods of a class, in whichever test it is called first.
    """
    public = inspect.getmembers(handle, inspect.isfunction)
    found = {n: inspect.signature(f) for n, f in public if not n.startswith("_")}
    return {
        name: signature.replace(
            parameters=[p for p in signature.parameters.values() if p.name != "_ray_trace_ctx"]
        )
        for name, signature in found.items()
    }


@pytest.mark.parametrize(("handle", "actor"), PAIRS)
def test_a_handle_has_the_methods_of_its_actor(handle: type, actor: type) -> None:
    theirs = methods(actor)
    for name, ours in methods(handle).items():
        if name in NO_CALLS:
            continue
        assert name in theirs
        assert ours.return_annotation == theirs[name].return_annotation, name
        for mine, other in zip(
            ours.parameters.values(), theirs[name].parameters.values(), strict=True
        ):
            assert (mine.name, mine.kind, mine.default) == (other.name, other.kind, other.default)
            # References on one side are what they refer to on the other.
            if mine.kind is not inspect.Parameter.VAR_POSITIONAL:
                assert mine.annotation == other.annotation, (name, mine.name)


@pytest.mark.parametrize(("handle", "actor"), PAIRS)
def test_a_handle_calls_the_method_of_its_own_name(handle: type, actor: type) -> None:
    async def scenario() -> None:
        for name, signature in methods(handle).items():
            if name in NO_CALLS:
                continue
            result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            result.set_result("the result")
            recorder = Recorder(result)
            arguments = tuple(f"argument {i}" for i in range(len(signature.parameters) - 1))
            answer = await getattr(handle(0, recorder), name)(*arguments)
            assert recorder.calls == [(name, arguments)]
            assert answer == ("the result" if signature.return_annotation != "None" else None)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("handle", "error", "words"),
    [
        (EngineHandle, EngineError, r"engine 3 died; .*same command"),
        (RankHandle, TrainingError, r"learner rank 3 died; .*same command"),
    ],
)
def test_the_death_of_a_process_names_it(handle: type, error: type, words: str) -> None:
    async def scenario() -> None:
        dead: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        dead.set_exception(ActorDiedError())
        await handle(3, Recorder(dead)).close()

    with pytest.raises(error, match=words):
        asyncio.run(scenario())
