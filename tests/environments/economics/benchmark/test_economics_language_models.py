"""Language models as agents: a real HTTP server of chat completions, and a Generator."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from chat_server import ChatServer, chat_server
from economics_server import free_port
from scripted import sample

from rlsys.config import EndpointAgentConfig, LocalModelConfig, PromptConfig
from rlsys.data.arithmetic import signed_terms
from rlsys.environments.economics import EconomicsConfig, EconomicsEnvironment
from rlsys.environments.economics.benchmark.agents import AgentAnswer
from rlsys.environments.economics.benchmark.language_models import (
    FAILURES_IN_A_ROW,
    ModelAgent,
    endpoint_agent,
)
from rlsys.environments.economics.benchmark.sessions import ResetArguments, local_sessions
from rlsys.environments.economics.errors import EndpointError
from rlsys.environments.economics.models import EconomicsAction, EconomicsObservation, HistoryEntry
from rlsys.errors import ConfigError
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.types import Completion, GenerationRequest


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with chat_server() as chat:
        yield chat


def endpoint(chat: ChatServer, **changes: float | str) -> EndpointAgentConfig:
    fields = {"name": "it", "base_url": chat.base_url, "model": "m", "retries": 0, **changes}
    return EndpointAgentConfig(**fields)


def ask(config: EndpointAgentConfig, *seen: EconomicsObservation) -> list[AgentAnswer]:
    """The answers of the endpoint's agent, one after the other."""

    async def answers() -> list[AgentAnswer]:
        async with endpoint_agent(config) as agent:
            return [await agent.answer(one) for one in seen]

    return asyncio.run(answers())


def first_question(
    total_budget: int = 300, **config: bool | str
) -> tuple[EconomicsEnvironment, EconomicsObservation]:
    environment = EconomicsEnvironment(EconomicsConfig(**config))
    return environment, environment.reset(seed=5, total_budget=total_budget)


def test_one_user_message_with_question_and_budget(chat: ChatServer) -> None:
    environment, seen = first_question()
    config = endpoint(chat, template="{number}/{problems} {remaining} {per_question}\n{problem}")
    (answer,) = ask(config, seen)
    probe, request = chat.requests
    assert probe["max_tokens"] == 1
    assert request["messages"] == [{"role": "user", "content": f"1/10 300 30\n{seen.question}"}]
    assert (request["temperature"], request["model"], request["max_tokens"]) == (0.0, "m", 300)
    step = environment.step(EconomicsAction(response=answer.text))
    assert step.history[0].was_correct


def test_replies_are_bounded_by_the_budget_only_where_it_is_hard(chat: ChatServer) -> None:
    ask(endpoint(chat, max_tokens=40), first_question()[1])
    ask(endpoint(chat, max_tokens=400), first_question(mode="soft")[1])
    assert [request["max_tokens"] for request in chat.requests] == [1, 40, 1, 400]


def test_a_thought_apart_is_charged_and_not_graded(chat: ChatServer) -> None:
    chat.message = lambda answer: {
        "content": f"\\boxed{{{answer}}}",
        "reasoning_content": "\\boxed{0} or so",
    }
    environment, seen = first_question()
    (answer,) = ask(endpoint(chat), seen)
    assert answer.text == f"\\boxed{{0}} or so\n{answer.visible}"
    step = environment.step(
        EconomicsAction(response=answer.text, metadata={"grading_response": answer.visible})
    )
    assert step.history[0].was_correct
    assert step.history[0].tokens_used == 5  # 4 words


def test_a_reply_without_text_is_an_empty_answer(chat: ChatServer) -> None:
    chat.message = lambda answer: {"content": None}
    (answer,) = ask(endpoint(chat), first_question()[1])
    assert (answer.text, answer.failed) == ("", False)


def test_a_server_that_stumbles_is_asked_again(chat: ChatServer) -> None:
    chat.failing = lambda number, body: 503 if number == 2 else None
    (answer,) = ask(endpoint(chat, retries=1), first_question()[1])
    assert "boxed" in answer.text
    assert len(chat.requests) == 3


def test_a_reply_that_fails_for_good_is_counted_and_empty(chat: ChatServer) -> None:
    chat.failing = lambda number, body: 500 if number == 2 else None
    seen = first_question()[1]
    answers = ask(endpoint(chat), seen, seen)
    assert [(answer.failed, bool(answer.text)) for answer in answers] == [
        (True, False),
        (False, True),
    ]


def test_an_endpoint_that_is_gone_ends_the_run(chat: ChatServer) -> None:
    chat.failing = lambda number, body: 500 if number > 1 else None
    seen = first_question()[1]
    with pytest.raises(
        EndpointError, match=r"endpoint 'it' failed 20 times in a row \(\w+: Error code"
    ):
        ask(endpoint(chat), *[seen] * 50)
    assert len(chat.requests) == 1 + FAILURES_IN_A_ROW


def test_the_probe_says_what_is_wrong(chat: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(EndpointError, match=r"for model 'm' \(.+\); start it, or"):
        ask(endpoint(chat, base_url=nowhere))
    chat.failing = lambda number, body: 404
    with pytest.raises(EndpointError, match=r"404.*out of order"):
        ask(endpoint(chat))
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"environment variable NO_SUCH_KEY.*is not set"):
        ask(endpoint(chat, api_key_env="NO_SUCH_KEY"))


def test_a_slow_endpoint_times_out(chat: ChatServer) -> None:
    def late(answer: Any) -> dict[str, Any]:
        time.sleep(1.0)
        return {"content": "late"}

    chat.message = late
    with pytest.raises(EndpointError, match="timed out"):
        ask(endpoint(chat, timeout_s=0.3))


def test_the_key_travels(chat: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    ask(endpoint(chat, api_key_env="A_KEY"))
    assert chat.keys == {"Bearer secret"}


class Echo:
    """A Generator that answers with given ids, and rambles on if they end nothing."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.requests: list[GenerationRequest] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        self.requests += requests
        return [[sample(request, self.ids)] for request in requests]


def model_agent(text: str, *, max_length: int = 200, **config: int) -> tuple[ModelAgent, Echo]:
    tokenizer = load_tokenizer("tiny")
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    echo = Echo([*ids, tokenizer.eos_token_id])
    prompt = PromptConfig(template="{problem}")
    settings = LocalModelConfig(name="local", prompt=prompt, think_end="</think>", **config)
    return ModelAgent(settings, echo, tokenizer, max_length=max_length), echo


def played(config: dict[str, bool], answer: AgentAnswer) -> HistoryEntry:
    async def play() -> EconomicsObservation:
        async with local_sessions(EconomicsConfig(**config))() as session:
            await session.reset(5, ResetArguments(total_budget=300))
            return await session.answer(answer)

    return asyncio.run(play()).history[0]


@pytest.mark.parametrize("trusted", [True, False])
def test_the_boxes_of_a_thought_that_never_ends_are_no_answers(
    chat: ChatServer, trusted: bool
) -> None:
    _, seen = first_question(trusted=trusted)
    box = f"\\boxed{{{sum(signed_terms(seen.question))}}}"
    agent, _ = model_agent(f"1+2=3{box}", max_tokens=200)
    answer = asyncio.run(agent.answer(seen))
    assert answer.text.endswith(box) and answer.visible == ""
    entry = played({"trusted": trusted}, answer)
    assert not entry.was_correct and entry.tokens_used > 0
    assert played({"trusted": trusted}, answer._replace(visible=None)).was_correct
    chat.message = lambda answer: {"content": None, "reasoning_content": f"{box} perhaps"}
    (answer,) = ask(endpoint(chat), seen)
    assert not played({}, answer).was_correct


def test_a_model_is_asked_by_ids_and_its_thought_is_told_apart() -> None:
    agent, echo = model_agent("1+2=3</think>\n\n\\boxed{3}", max_tokens=50)
    _, seen = first_question(trusted=True)
    answer = asyncio.run(agent.answer(seen))
    (request,) = echo.requests
    assert (request.n, request.max_tokens, request.temperature) == (1, 50, 0.0)
    assert answer.visible is not None
    assert answer.visible.strip() == "\\boxed{3}"
    assert answer.text.endswith(answer.visible)
    assert answer.sampled_tokens == len(echo.ids)


def test_a_model_stays_within_budget_and_length() -> None:
    agent, echo = model_agent("1", max_tokens=5000)
    untrusting = first_question(total_budget=40)[1]
    answer = asyncio.run(agent.answer(untrusting))
    assert (echo.requests[0].max_tokens, answer.sampled_tokens, answer.visible) == (40, None, "")
    asyncio.run(agent.answer(first_question(total_budget=9000)[1]))
    assert echo.requests[1].max_tokens == 200 - len(echo.requests[1].token_ids)
    agent, echo = model_agent("1", max_length=2)
    assert asyncio.run(agent.answer(untrusting)).failed
    assert echo.requests == []
