"""The two-step teacher: what it asks, how strictly it reads, what it survives."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_server import Answer, raw_server
from scripted import sample

from rlsys.algorithms.reflection import ChunkedThought, chunk_thought
from rlsys.config.reflection import EndpointTeacher
from rlsys.errors import DataError, EngineError, ResourceError
from rlsys.reflection.labelling.arithmetic import result_chunks
from rlsys.reflection.labelling.chat import EndpointChat, EngineChat
from rlsys.reflection.labelling.journal import Journal
from rlsys.reflection.labelling.responses import Thought, read_thoughts
from rlsys.reflection.labelling.teacher import (
    Labels,
    ModelTeacher,
    ReadingTeacher,
    label_thoughts,
    read_classification,
    read_labels_file,
    read_verification,
)
from rlsys.reflection.prompts import classify_prompt, verify_prompt
from rlsys.sft.tiny_model import tiny_tokenizer
from rlsys.types import Completion, GenerationRequest, Problem

YES, NO = "It does. \nAnswer: Yes", "Not yet.\nAnswer: No"


def thought_of(text: str, row: str = "p/0", answer: str = "9") -> Thought:
    return Thought(
        id=row,
        problem=Problem(id="p", text="3+8-2", answer=answer),
        token_ids=np.array([ord(c) for c in text], np.int32),
        closed=True,
    )


def chunk(thought: Thought) -> ChunkedThought:
    return chunk_thought([chr(i) for i in thought.token_ids], separator="(?=[;?])", most=1)


def labelled(*labels: str) -> str:
    return "\n".join(f"[{i}]. Reason: r.\nLabel: {label}" for i, label in enumerate(labels, 1))


class Scripted:
    """A chat that answers by what it is asked."""

    def __init__(self, classify: str, verify: Callable[[str], str] = lambda prompt: YES) -> None:
        self.classify, self.verify = classify, verify
        self.prompts: list[str] = []

    async def complete(self, prompt: str, max_tokens: int) -> str:
        self.prompts.append(prompt)
        return self.classify if "three labels" in prompt else self.verify(prompt)


def label(chat: Scripted, text: str) -> Labels:
    thought = thought_of(text)
    return asyncio.run(ModelTeacher(chat).label(thought, chunk(thought)))


def test_candidates_and_the_last_chunk_are_verified() -> None:
    chat = Scripted(
        labelled("Reasoning", "Right Result", "Wrong Result", "Reasoning"),
        lambda prompt: YES if ";11-2=9" in prompt else NO,
    )
    labels = label(chat, "3+8=11;11-2=9?3+8=11;5")
    assert labels == Labels(id="p/0", chunks=4, results=(1,), bad={})
    assert chat.prompts == [
        classify_prompt("3+8-2", "9", ["3+8=11", ";11-2=9", "?3+8=11", ";5"]),
        verify_prompt("3+8-2", "9", ";11-2=9"),
        verify_prompt("3+8-2", "9", ";5"),
    ]


def test_without_the_gold_answer_it_is_shown_for_the_verification_only() -> None:
    chat = Scripted(labelled("Right Result"))
    thought = thought_of("6+3", answer="nine")
    labels = asyncio.run(ModelTeacher(chat, gold=False).label(thought, chunk(thought)))
    assert labels.results == (0,)
    classify, verify = chat.prompts
    assert "nine" not in classify and "correct answer:" not in classify.lower()
    assert "nine" in verify


def test_a_missing_label_voids_its_window_only() -> None:
    class ByWindow(Scripted):
        async def complete(self, prompt: str, max_tokens: int) -> str:
            if "three labels" in prompt and "a" * 1000 in prompt:
                return labelled("Right Result")  # of two parts
            return await super().complete(prompt, max_tokens)

    chat = ByWindow(labelled("Right Result"))
    labels = label(chat, "a" * 1000 + ";bbb;" + "c" * 1020)
    assert labels.results == (2,)
    assert labels.bad == {"missing_label": 1}


def test_an_empty_thought_asks_nothing() -> None:
    chat = Scripted("")
    assert label(chat, "") == Labels(id="p/0", chunks=0, results=())
    assert chat.prompts == []


def test_replies_without_an_answer_line_are_counted_and_not_kept() -> None:
    labels = label(Scripted(labelled("Right Result"), lambda prompt: "Surely."), "9")
    assert (labels.results, labels.bad) == ((), {"no_answer": 1})


def test_labels_belong_to_their_numbers() -> None:
    cases: list[tuple[str, list[str] | None, bool]] = [
        (labelled("Reasoning", "Right Result"), ["Reasoning", "Right Result"], False),
        (
            "**[1].** Reason: x\n**Label: right result**\n\n[2]: Label: Wrong Result",
            ["Right Result", "Wrong Result"],
            False,
        ),
        (
            labelled("Reasoning") + "\nLabel: Right Result\n[2]. Label: Reasoning",
            ["Reasoning", "Reasoning"],
            True,
        ),
        ("[2]. Label: Reasoning\n[1]. Label: Right Result", ["Right Result", "Reasoning"], False),
        ("[1]. Label: Reasoning", None, False),
        ("[1]. Label: Reasoning\n[2]. Label: Perhaps", None, False),
        ("", None, False),
    ]
    for reply, expected, doubled in cases:
        assert read_classification(reply, 2) == (expected, doubled), reply


def test_the_last_answer_line_stands() -> None:
    assert read_verification("Answer: No? Well.\n**Answer:** Yes") is True
    assert read_verification("answer: no") is False
    assert read_verification("Answer: maybe") is None


def thoughts(count: int) -> list[Thought]:
    return [thought_of("3+8=11;11-2=9", f"p/{i}") for i in range(count)]


def test_a_restart_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"

    def run(count: int) -> Any:
        teacher = ReadingTeacher(result_chunks)
        journal = Journal(path)
        return asyncio.run(
            label_thoughts(teacher, thoughts(count), chunk, journal, at_once=2, give_up_after=3)
        )

    first, again = run(3), run(5)
    assert (first.labelled, first.skipped) == (3, 0)
    assert (again.labelled, again.skipped) == (2, 3)
    with path.open("a") as file:
        file.write('{"id": "p/5", "chu')  # killed while writing
    assert run(6).labelled == 1
    read = list(read_labels_file(path))
    assert [r.id for r in read] == [f"p/{i}" for i in range(6)]
    assert {r.results for r in read} == {(1,)}


class Failing:
    """A teacher whose endpoint fails for some thoughts."""

    def __init__(self, fails: Callable[[str], bool]) -> None:
        self.fails = fails

    async def label(self, thought: Thought, chunked: ChunkedThought) -> Labels:
        await asyncio.sleep(0)
        if self.fails(thought.id):
            raise EngineError("teacher 'm' does not answer")
        return await ReadingTeacher(result_chunks).label(thought, chunked)


def test_failures_are_counted_and_asked_again(tmp_path: Path) -> None:
    def run(teacher: Failing) -> Any:
        journal = Journal(tmp_path / "labels.jsonl")
        return asyncio.run(
            label_thoughts(teacher, thoughts(9), chunk, journal, at_once=1, give_up_after=2)
        )

    first = run(Failing(lambda row: row in ("p/2", "p/6")))
    assert (first.labelled, first.failed) == (7, 2)
    assert run(Failing(lambda row: False)).labelled == 2


def test_a_teacher_that_is_gone_ends_the_work_and_keeps_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "labels.jsonl")
    teacher = Failing(lambda row: row >= "p/4")
    with pytest.raises(EngineError, match=r"failed 3 times in a row .* 4 thoughts are labelled"):
        asyncio.run(
            label_thoughts(teacher, thoughts(9), chunk, journal, at_once=1, give_up_after=3)
        )


def test_malformed_files_are_refused_with_their_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "p/0", "results": "none"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl, row 'p/0': not the labels of a thought"):
        list(read_labels_file(path))
    with pytest.raises(DataError, match=r"row 'p/0': not a sampled thought"):
        list(read_thoughts(path))
    path.write_text("{}\n")
    with pytest.raises(DataError, match=r"line 1: a row without id"):
        list(read_labels_file(path))


def endpoint(respond: Callable[[dict[str, Any]], tuple[int, Any]]) -> AbstractContextManager[str]:
    """A server of chat completions; `respond` turns a request into status and body."""

    def answer(asked: dict[str, Any]) -> Answer:
        status, reply = respond(asked)
        return Answer(json.dumps(reply), status)

    return raw_server(answer)


def completion(content: str | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
    }


async def ask(url: str, prompt: str = "Hello.", **settings: Any) -> str:
    chat = EndpointChat(EndpointTeacher(base_url=url, model="m", **settings))
    try:
        return await chat.complete(prompt, 7)
    finally:
        await chat.close()


def test_an_endpoint_is_asked_greedily_and_again_after_a_failure() -> None:
    seen: list[dict[str, Any]] = []

    def respond(body: dict[str, Any]) -> tuple[int, Any]:
        seen.append(body)
        return (503, {"error": "busy"}) if len(seen) == 1 else (200, completion("Hi."))

    with endpoint(respond) as url:
        assert asyncio.run(ask(url, retries=1)) == "Hi."
    assert len(seen) == 2
    assert seen[1] == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello."}],
        "temperature": 0.0,
        "max_tokens": 7,
    }


def test_a_filtered_reply_is_an_empty_one() -> None:
    with endpoint(lambda body: (200, completion(None))) as url:
        assert asyncio.run(ask(url)) == ""


def test_a_slow_endpoint_is_a_failure_and_not_a_wait() -> None:
    def respond(body: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(1.0)
        return 200, completion("late")

    with endpoint(respond) as url, pytest.raises(EngineError, match="APITimeoutError"):
        asyncio.run(ask(url, timeout_s=0.1, retries=0))


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    now, most = 0, 0
    lock = threading.Lock()

    def respond(body: dict[str, Any]) -> tuple[int, Any]:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1
        return 200, completion("x")

    async def many(url: str) -> None:
        chat = EndpointChat(EndpointTeacher(base_url=url, model="m", concurrency=3))
        await asyncio.gather(*(chat.complete("Hello.", 7) for _ in range(12)))
        await chat.close()

    with endpoint(respond) as url:
        asyncio.run(many(url))
    assert most == 3


def test_an_endpoint_that_is_down_is_found_before_the_start() -> None:
    with endpoint(lambda body: (200, completion("x"))) as url:
        pass

    async def check() -> None:
        await EndpointChat(EndpointTeacher(base_url=url, model="m", retries=0)).check()

    with pytest.raises(ResourceError, match=r"'m' at http.* does not answer .* start the server"):
        asyncio.run(check())


def test_own_engines_teach_through_the_same_protocol() -> None:
    tokenizer = tiny_tokenizer()

    class Engine:
        def __init__(self) -> None:
            self.requests: list[GenerationRequest] = []

        async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
            self.requests += requests
            ids = tokenizer("Answer: Yes<eos>", add_special_tokens=False)["input_ids"]
            return [[sample(request, ids)] for request in requests]

    engine = Engine()
    chat = EngineChat(engine, tokenizer, max_length=64)
    assert asyncio.run(chat.complete("3+4?", 2048)) == "Answer: Yes"
    (request,) = engine.requests
    assert tokenizer.decode(request.token_ids) == "<bos>3+4?=<think>"
    assert (request.temperature, request.max_tokens) == (0.0, 64 - len(request.token_ids))
    with pytest.raises(EngineError, match=r"70 tokens leaves no room .* 64 tokens"):
        asyncio.run(chat.complete("1" * 67, 8))
