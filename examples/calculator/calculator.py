"""An agent with a calculator: the policy is trained through an OpenAI-compatible endpoint.

    rlsys train examples/calculator/calculator.yaml model.path=Qwen/Qwen3-0.6B

The agent runs in a process of its own. It knows nothing of rlsys except the two arguments: any code
that uses the client of OpenAI can stand in its place.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

from openai import AsyncOpenAI, BadRequestError

from rlsys.environments.agent.interface import Endpoint, Task

CALCULATOR: Final[Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes an expression of numbers with + - * / and parentheses.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
ASK: Final = "Use the calculator. Then write the final answer as \\boxed{}."
MOST_CALLS: Final = 4
LONGEST_EXPRESSION: Final = 200

_OPERATORS: Final[dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


async def solve(task: Task, endpoint: Endpoint) -> str:
    """Answer a problem; rlsys compares the answer with the gold answer."""
    client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    chat: list[Any] = [
        {"role": "system", "content": ASK},
        {"role": "user", "content": task.text},
    ]
    for _ in range(MOST_CALLS):
        try:
            completion = await client.chat.completions.create(
                model=endpoint.model, messages=chat, tools=[CALCULATOR]
            )
        except BadRequestError:  # the budget or the context is used up
            break
        reply = completion.choices[0].message
        chat.append(reply)
        if not reply.tool_calls:
            return reply.content or ""
        for call in reply.tool_calls:
            result = use_tool(call.function.name, call.function.arguments)
            chat.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


def use_tool(name: str, arguments: str) -> str:
    """Return the result of a tool call, or a sentence about what is wrong with it."""
    if name != "calculator":
        return f"error: there is no tool {name}"
    expression = json.loads(arguments).get("expression")
    if not isinstance(expression, str):
        return "error: expression must be a text"
    try:
        return str(evaluate(expression))
    except (ValueError, SyntaxError, RecursionError, ArithmeticError) as error:
        return f"error: {error}"


def evaluate(expression: str) -> Fraction:
    """Compute an expression exactly. It is parsed and never executed.

    Raises ValueError or SyntaxError if it is anything but numbers, + - * / and parentheses, and
    ZeroDivisionError.

    Example: evaluate("(3 + 8) / 2") is Fraction(11, 2)
    """
    if len(expression) > LONGEST_EXPRESSION:
        raise ValueError(f"the expression has more than {LONGEST_EXPRESSION} characters")
    return _value(ast.parse(expression.strip(), mode="eval").body)


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    raise ValueError("only numbers, + - * / and parentheses are allowed")
