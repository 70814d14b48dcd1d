"""The client of OpenAI-compatible endpoints, for language models as teachers and as agents."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from rlsys.config import EndpointSection
from rlsys.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class EndpointFailure(Exception):
    """The endpoint returned no chat completion. The message begins with the kind of the error."""


class ChatReply(NamedTuple):
    """The reply of a chat model. Parts are empty if the endpoint has cut or filtered them."""

    content: str
    thought: str
    """The thought, if the server returns it separately from the answer."""


def endpoint_client(config: EndpointSection) -> AsyncOpenAI:
    """Return a client with automatic retries; no request is sent yet.

    Raises:
        ResourceError: the client's package is not installed.
        ConfigError: the environment variable of the key is not set.
    """
    if find_spec("openai") is None:
        raise ResourceError("endpoints need openai; install it with pip install 'rlsys[eval]'")
    from openai import AsyncOpenAI

    return AsyncOpenAI(
        base_url=config.base_url,
        api_key=_key(config),
        timeout=config.timeout_s,
        max_retries=config.retries,  # pauses of 0.5 s, 1 s, 2 s, … up to 8 s between attempts
    )


async def ask(
    client: AsyncOpenAI, model: str, prompt: str, *, temperature: float, max_tokens: int
) -> ChatReply:
    """Send one user message and return the reply.

    Raises:
        EndpointFailure: the client's retries are spent, or the answer is no chat completion.
    """
    from openai import OpenAIError

    try:
        completion: Any = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            temperature=temperature,
            max_tokens=max_tokens,
        )
    except (OpenAIError, ValueError, RecursionError) as error:  # the last two: no JSON, or too deep
        raise EndpointFailure(failure_reason(error)) from error
    return _reply(completion)


def _reply(completion: Any) -> ChatReply:
    """Parse the body of a response. It may have any shape, because the client does not check it."""
    choices = getattr(completion, "choices", None)
    if choices == []:
        return ChatReply("", "")
    message: Any = getattr(choices[0], "message", None) if isinstance(choices, list) else None
    if not hasattr(message, "content"):
        raise EndpointFailure(f"no chat completion: {str(completion)[:200]!r}")
    extra = message.model_extra or {}
    thought = extra.get("reasoning_content") or extra.get("reasoning")
    return ChatReply(_text(message.content), _text(thought))


def _text(value: object) -> str:
    """Return the text of a string, or of a list of parts; parts without text are left out."""
    if isinstance(value, list):
        texts = (part.get("text") for part in value if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return value if isinstance(value, str) else ""


def sampled_ids(choice: Any) -> list[int] | None:
    """Return the token ids of one choice of /v1/completions, None if it has none.

    vLLM sends them if `return_token_ids` is set; the choice may have any shape.
    """
    ids = (getattr(choice, "model_extra", None) or {}).get("token_ids")
    whole = isinstance(ids, list) and all(isinstance(token, int) for token in ids)
    return ids if whole else None


def failure_reason(error: Exception) -> str:
    """Return the kind and first line of the error, and its cause if there is one."""
    cause = f": {error.__cause__}" if error.__cause__ and str(error.__cause__) else ""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}{cause}"


def _key(config: EndpointSection) -> str:
    if config.api_key_env is None:
        return "none"  # the client requires a key; a local server ignores it
    if key := os.environ.get(config.api_key_env):
        return key
    raise ConfigError(
        f"environment variable {config.api_key_env}, the key of the endpoint {config.base_url}, is "
        "not set; export it, or correct api_key_env"
    )
