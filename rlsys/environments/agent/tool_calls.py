"""Find tool calls in a reply, in the form of Hermes and Qwen.

<tool_call>
{"name": "calculator", "arguments": {"expression": "3+8"}}
</tool_call>
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from rlsys.environments.agent.wire import ToolCall

_CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def split_tool_calls(text: str, first: int) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text outside of tool calls, and the calls; no calls if one is malformed.

    A malformed call leaves the whole text as it is, so the agent sees what the policy wrote.
    `first` is the number of the first call; numbers are unique in a session.
    """
    calls: list[ToolCall] = []
    for match in _CALL.finditer(text):
        call = _read(match[1])
        if call is None:
            return text, ()
        # Nine letters and digits, the form that the chat templates of Mistral require.
        calls.append(ToolCall(f"call{first + len(calls):05d}", *call))
    return (_CALL.sub("", text).strip(), tuple(calls)) if calls else (text, ())


def _read(text: str) -> tuple[str, str] | None:
    """Return name and arguments of a call; None if it is no JSON object with both."""
    try:
        call: Any = json.loads(text)
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return None
        arguments = call.get("arguments", {})
        # NaN and Infinity, which Python reads and writes, are no JSON for other readers.
        written = json.dumps(arguments, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return (call["name"], written) if isinstance(arguments, dict) else None
