"""Sessions with a fake engine: what is trained is what was sampled, token by token."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from chatml import chatml_tokenizer

from learner.packing import flatten
from rlsys.environments.agent.session import Policy, Session
from rlsys.environments.agent.tree import Place
from rlsys.environments.agent.wire import ChatReply, Refusal, read_request
from rlsys.tokenization.chat import ChatRenderer
from rlsys.tokenization.think import ThoughtEnd
from rlsys.tokenization.tokenizer import encode, eos_ids
from rlsys.types import Completion, Floats, GenerationRequest, Kind, Sample

TOKENIZER = chatml_tokenizer()
RENDERER = ChatRenderer(TOKENIZER)
EOS = eos_ids(TOKENIZER)[0]
CALCULATOR = {"type": "function", "function": {"name": "calculator", "parameters": {}}}

Write = Callable[[GenerationRequest], Sequence[int]]


class Engine:
    """Writes what a test wants, up to the limit, with log-probs that are all different."""

    def __init__(self, write: Write) -> None:
        self.sampled: list[tuple[GenerationRequest, Completion]] = []
        self._write = write
        self._tokens = 0

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        await asyncio.sleep(0)
        return [[self._complete(request)] for request in requests]

    def _complete(self, request: GenerationRequest) -> Completion:
        ids = list(self._write(request))[: request.max_tokens]
        self._tokens += len(ids)
        completion = Completion(
            token_ids=np.array(ids, np.int32),
            logprobs=-np.arange(self._tokens - len(ids), self._tokens, dtype=np.float32),
            stopped=ids[-1] in request.stop_token_ids,
            versions=(0, 0),
            engine=3,
        )
        self.sampled.append((request, completion))
        return completion


def says(*texts: str) -> Write:
    """Writes the texts one after the other, each with its end of turn."""
    left = list(texts)
    return lambda request: [*encode(TOKENIZER, left.pop(0)), EOS]


def session_of(write: Write, **settings: Any) -> tuple[Session, Engine]:
    engine = Engine(write)
    values: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "reply_tokens": 100,
        "budget": 100_000,
        "max_length": 1_000_000,
        "exact_history": True,
        "thought_end": ThoughtEnd.resolve(TOKENIZER, None),
        **settings,
    }
    policy = Policy(
        generator=engine,
        renderer=RENDERER,
        decode=lambda ids: str(TOKENIZER.decode(ids, skip_special_tokens=True)),
        stop_ids=(EOS,),
        **values,
    )
    return Session(policy, seed=7), engine


async def ask(session: Session, messages: Sequence[Any], **options: Any) -> ChatReply:
    body = {"model": "policy", "messages": messages, **options}
    return await session.complete(read_request(json.dumps(body).encode()))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def check_exact(session: Session, engine: Engine) -> None:
    """Every reply stands in the tree behind exactly the ids that the engine continued."""
    segments = session.tree.segments
    replies = [i for i, segment in enumerate(segments) if segment.kind is Kind.ANSWER]
    assert len(replies) == len(engine.sampled)
    for index, (request, completion) in zip(replies, engine.sampled, strict=True):
        segment = segments[index]
        assert segment.logprobs is not None
        before = session.tree.path(Place(segment.parent, segment.cut))
        assert before.tolist() == request.token_ids.tolist()
        assert segment.token_ids.tolist() == completion.token_ids.tolist()
        assert segment.logprobs.tolist() == completion.logprobs.tolist()
    assert session.spent == sum(len(c.token_ids) for _, c in engine.sampled)
    # The same in the packed row of the learner: its log-probs are all different, so each sampled
    # token is in the row once, behind the token that the engine saw before it.
    advantages: list[Floats | None] = [
        np.ones(len(s.token_ids), np.float32) if s.kind.sampled else None for s in segments
    ]
    row = flatten(Sample(segments=tuple(segments), advantages=tuple(advantages)))
    assert row.trained.sum() == session.spent
    for request, completion in engine.sampled:
        last = np.flatnonzero(row.trained & (row.logprobs == completion.logprobs[-1])).item()
        path = []
        while last >= 0:
            path.append(int(row.token_ids[last]))
            last = int(row.parents[last])
        whole = [*request.token_ids.tolist(), *completion.token_ids.tolist()]
        assert path[::-1] == whole


async def wander(seed: int) -> tuple[Session, Engine, int]:
    """An agent that goes on, calls tools, repeats itself, rewrites history and begins anew."""
    rng = random.Random(seed)
    plain = [i for i in range(len(TOKENIZER)) if i != EOS]
    session, engine = session_of(
        lambda r: [*rng.choices(plain, k=rng.randint(0, 12)), *([EOS] * rng.randint(0, 1) or [5])],
        reply_tokens=10,
    )
    chat: list[Any] = [{"role": "system", "content": "You help."}, user("in the 1234")]
    drifted = 0
    for _ in range(rng.randint(3, 12)):
        reply = await ask(session, chat, tools=[CALCULATOR] if seed % 2 else [])
        _, completion = engine.sampled[-1]
        ids = completion.token_ids.tolist()
        drifted += encode(TOKENIZER, TOKENIZER.decode(ids)) != ids
        match rng.randint(0, 5):
            case 0:  # the same request again
                continue
            case 1:  # rewritten history
                chat = [*chat[:1], user("so far: " + (reply.content or "")), user("go on")]
            case 2:
                chat = [user("another chat")]
            case _:
                answer = rng.choice([user("on <|im_end|> and on"), user("é 00")])
                if reply.calls:
                    call = reply.calls[0]
                    answer = {"role": "tool", "tool_call_id": call.id, "content": "12"}
                chat = [*chat, reply.message(), answer]
    return session, engine, drifted


def test_the_trained_ids_are_the_sampled_ids_on_many_random_chats() -> None:
    drifted = 0
    for seed in range(150):
        session, engine, count = asyncio.run(wander(seed))
        check_exact(session, engine)
        drifted += count
    assert drifted > 300  # replies that encoding their text again would have changed


def test_a_chat_that_goes_on_is_one_branch_of_exact_ids() -> None:
    # `t`, `he` is written as two tokens, and encoding its text gives one.
    apart = [*encode(TOKENIZER, "t"), *encode(TOKENIZER, "he"), EOS]
    assert encode(TOKENIZER, "the") != apart[:-1]
    session, engine = session_of(lambda request: apart)

    async def play() -> None:
        chat: list[Any] = [user("12")]
        for text in ("on", "34"):
            reply = await ask(session, chat)
            assert reply.content == "the"
            # Most clients send back content and role alone.
            chat += [{"role": "assistant", "content": "the"}, user(text)]
        await ask(session, chat)

    asyncio.run(play())
    assert (session.calls, session.branches) == (3, 1)
    kinds = [segment.kind for segment in session.tree.segments]
    assert kinds == [Kind.PROMPT, Kind.ANSWER, *(Kind.OBSERVATION, Kind.ANSWER) * 2]
    second = engine.sampled[1][0].token_ids.tolist()
    first = engine.sampled[0][0].token_ids.tolist()
    turn = encode(TOKENIZER, "\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n")
    assert second == [*first, *apart, *turn]
    check_exact(session, engine)


def test_a_rewritten_history_is_a_branch_that_shares_what_is_equal() -> None:
    session, engine = session_of(says("12", "34"))

    async def play() -> None:
        await ask(session, [user("in"), user("on")])
        await ask(session, [user("in"), user("an")])

    asyncio.run(play())
    assert session.branches == 2
    _, _, rewritten, _ = session.tree.segments
    shared = encode(TOKENIZER, "<|im_start|>user\nin<|im_end|>\n<|im_start|>user\n")
    assert (rewritten.parent, rewritten.cut) == (0, len(shared))
    assert rewritten.token_ids[0] == encode(TOKENIZER, "an")[0]
    check_exact(session, engine)


def test_thoughts_stay_in_the_context_though_the_template_drops_them() -> None:
    session, engine = session_of(
        says("<think>12</think>in", "on"), thought_end=ThoughtEnd.resolve(TOKENIZER, "</think>")
    )

    async def play() -> ChatReply:
        reply = await ask(session, [user("34")])
        await ask(session, [user("34"), {"role": "assistant", "content": " in "}, user("go on")])
        return reply

    reply = asyncio.run(play())
    assert (reply.content, reply.thought) == ("in", "<think>12")
    assert session.branches == 1
    assert "<think>12</think>in" in TOKENIZER.decode(engine.sampled[1][0].token_ids)
    check_exact(session, engine)


def test_the_template_may_decide_what_is_left_of_earlier_replies() -> None:
    session, engine = session_of(
        says("<think>12</think>in", "on"),
        thought_end=ThoughtEnd.resolve(TOKENIZER, "</think>"),
        exact_history=False,
    )

    async def play() -> None:
        reply = await ask(session, [user("34")])
        await ask(session, [user("34"), reply.message(), user("go on")])

    asyncio.run(play())
    assert session.branches == 2
    (_, first), (second, _) = engine.sampled
    asked = "<|im_start|>user\n34<|im_end|>\n<|im_start|>assistant\n"
    turns = f"{asked}in<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.decode(second.token_ids) == turns
    # Both branches share the first question; the first one trains the thought.
    shared = (0, len(encode(TOKENIZER, asked)))
    assert [(s.parent, s.cut) for s in session.tree.segments[1:3]] == [shared, shared]
    assert first.token_ids[0] == encode(TOKENIZER, "<think>")[0]
    check_exact(session, engine)


CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12+34"}}\n</tool_call>'


def test_tool_calls_are_parsed_and_their_results_are_observations() -> None:
    session, engine = session_of(says("on " + CALL, "46"))

    async def play() -> ChatReply:
        reply = await ask(session, [user("12+34")], tools=[CALCULATOR])
        answer = {"role": "tool", "tool_call_id": "call00000", "content": "46"}
        # A client that writes the arguments in its own way still says the same.
        message = reply.message()
        message["tool_calls"][0]["function"]["arguments"] = '{"expression":"12+34"}'  # type: ignore[index]
        await ask(session, [user("12+34"), message, answer], tools=[CALCULATOR])
        return reply

    reply = asyncio.run(play())
    assert reply.content == "on"
    (call,) = reply.calls
    assert call.as_json() == {
        "id": "call00000",
        "type": "function",
        "function": {"name": "calculator", "arguments": '{"expression": "12+34"}'},
    }
    body: Any = reply.body(0)
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    observation = session.tree.segments[2]
    assert observation.kind is Kind.OBSERVATION
    assert "<tool_response>\n46" in TOKENIZER.decode(observation.token_ids)
    assert "calculator" in TOKENIZER.decode(session.tree.segments[0].token_ids)
    assert session.branches == 1
    check_exact(session, engine)


@pytest.mark.parametrize(
    "written", ["<tool_call>{</tool_call>", '<tool_call>{"name": 1}</tool_call>']
)
def test_a_malformed_call_is_content(written: str) -> None:
    session, _ = session_of(says(written))
    reply = asyncio.run(ask(session, [user("in")], tools=[CALCULATOR]))
    assert (reply.content, reply.calls) == (written, ())


def test_the_budget_of_a_session_ends_replies_and_then_calls() -> None:
    session, engine = session_of(lambda request: [5] * 50, budget=12, reply_tokens=8)

    async def play() -> list[Any]:
        bodies = [(await ask(session, [user("in")])).body(i) for i in range(2)]
        with pytest.raises(Refusal, match="budget of 12 sampled tokens") as refused:
            await ask(session, [user("in")])
        assert refused.value.code == "budget_exhausted"
        return bodies

    first, second = asyncio.run(play())
    prompt = len(engine.sampled[0][0].token_ids)
    assert first["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 8,
        "total_tokens": prompt + 8,
    }
    assert second["usage"]["completion_tokens"] == 4
    assert [body["choices"][0]["finish_reason"] for body in (first, second)] == ["length"] * 2


def test_parallel_calls_never_spend_a_budget_twice_and_keep_their_seeds() -> None:
    async def play(order: Sequence[str]) -> dict[str, Any]:
        session, engine = session_of(lambda request: [5] * 50, budget=20, reply_tokens=8)
        replies = await asyncio.gather(
            *(ask(session, [user(text)]) for text in order), return_exceptions=True
        )
        assert session.spent == sum(r.reply_tokens for r in replies if isinstance(r, ChatReply))
        assert session.spent == 20
        check_exact(session, engine)
        return {TOKENIZER.decode(r.token_ids): r.seed for r, _ in engine.sampled}

    first, other = asyncio.run(play("abc")), asyncio.run(play("cba"))
    assert first == other
    assert len(set(first.values())) == 3


def test_the_context_is_a_limit_for_all_branches_together() -> None:
    session, _ = session_of(says("12", "34"), max_length=40)

    async def play() -> None:
        await ask(session, [user("in")])
        with pytest.raises(Refusal, match="leave no room") as refused:
            await ask(session, [user("a" * 40)])
        assert refused.value.code == "context_length_exceeded"

    asyncio.run(play())
    assert session.calls == 1


def test_a_reply_that_nobody_reads_is_not_part_of_the_episode() -> None:
    session, _ = session_of(says("12", "34"))

    async def play() -> None:
        request = read_request(
            b'{"model": "policy", "messages": [{"role": "user", "content": "a"}]}'
        )
        with pytest.raises(Refusal, match="closed the connection"):
            await session.complete(request, lambda: False)
        session.close()
        with pytest.raises(Refusal, match="session is over"):
            await session.complete(request)

    asyncio.run(play())
    assert (session.tree.segments, session.spent) == ([], 0)


REFUSED = (
    (b"{", "not a JSON object"),
    (b"[" * 100_000, "not a JSON object"),
    (b"[]", "not a JSON object"),
    (b'{"model": "policy", "messages": "\\ud800"}', "not a JSON object"),
    (b'{"model": "policy", "messages": []}', "at least one message"),
    (b'{"model": "gpt-5", "messages": []}', "'gpt-5' is not served here"),
    (b'{"model": "policy", "messages": [{"role": "user"}], "n": 2}', "n 2 is not supported"),
    (b'{"model": "policy", "messages": [{"role": "user"}], "top_p": 0.5}', "top_p 0.5"),
    (b'{"model": "policy", "messages": [{"role": "user"}], "logit_bias": {"1": 2}}', "logit_bias"),
    (b'{"model": "policy", "messages": [{"role": "user"}], "stop": "x"}', "stop"),
    (b'{"model": "policy", "messages": [{"role": "user"}], "top_k": 2}', "'top_k' is not"),
    (b'{"model": "policy", "messages": [{"role": "user"}], "max_tokens": 0}', "above 0"),
    (b'{"model": "policy", "messages": [{"role": "user"}], "temperature": "a"}', "a number"),
    (b'{"model": "policy", "messages": [{"role": "assistant"}]}', "the last message"),
    (b'{"model": "policy", "messages": [{"role": "robot"}]}', "needs a role"),
    (b'{"model": "policy", "messages": [{"role": "user", "content": [{}]}]}', "is not text"),
    (b'{"model": "policy", "messages": [{"role": "user"}], "tools": [{}]}', "with a name"),
)  # fmt: skip


def test_what_is_not_supported_is_refused_with_one_sentence() -> None:
    for body, words in REFUSED:
        with pytest.raises(Refusal) as refused:
            read_request(body)
        assert words in str(refused.value), body
    session, _ = session_of(says("12"))
    with pytest.raises(Refusal, match=r"temperature 0\.5 is not that of the run, 1"):
        asyncio.run(ask(session, [user("a")], temperature=0.5))


def test_the_result_of_a_tool_gets_the_name_of_the_tool() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    request = read_request(json.dumps({"model": "policy", "messages": messages}).encode())
    assert request.messages[1] == {
        "role": "tool",
        "content": "3",
        "tool_call_id": "c1",
        "name": "add",
    }


def test_harmless_options_and_text_parts_are_read() -> None:
    request = read_request(
        b'{"model": "policy", "messages": [{"role": "user", "content": [{"type": "text", '
        b'"text": "a"}, {"type": "text", "text": "b"}]}], "n": 1, "stream": false, "stop": null, '
        b'"user": "me", "max_tokens": 9, "max_completion_tokens": 5, "temperature": 1}'
    )
    assert request.messages == ({"role": "user", "content": "ab"},)
    assert (request.max_tokens, request.temperature) == (5, 1.0)
