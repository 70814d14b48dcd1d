"""Text to plain values: YAML or JSON files, the values of command-line words, and YAML again.

Numbers, truth values and nulls are those of YAML 1.2, so `3e-4` is a number, and `010`, `1:30`,
`yes` and `2024-01-01` are text. A text without quotes is marked as `Unquoted`, because the schema
decides whether `none`, `yes` or `16,32` stands for something else (rlsys.config.spelling).
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from rlsys.assets import shipped_config
from rlsys.errors import ConfigError

Tree = dict[str, Any]

_EXPONENT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_SCALARS = (
    ("null", re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"^[-+]?(0|[1-9][\d_]*|0b[01_]+|0x[\da-fA-F_]+)$"), list("-+0123456789")),
    ("float", re.compile(r"^[-+]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*)$"), list("-+.0123456789")),
    ("float", _EXPONENT, list("-+.0123456789")),
    ("float", re.compile(r"^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"), list("-+.")),
    ("merge", re.compile(r"^<<$"), ["<"]),
)


class Unquoted(str):
    """A text that stood in the source without quotes."""

    __slots__ = ()


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice, of which PyYAML keeps the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first_lines: dict[str, int] = {}
        for key, _ in node.value:
            # Merged keys (`<<: *base`) may be written again: that is what they are for.
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            if key.value in first_lines:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key '{key.value}' is also on line {first_lines[key.value]}; "
                    "keep one of the two",
                    problem_mark=key.start_mark,
                )
            first_lines[key.value] = line
        return super().construct_mapping(node, deep)

    def text(self, node: yaml.ScalarNode) -> str:
        """The value of a text node."""
        value = str(self.construct_scalar(node))
        return Unquoted(value) if node.style is None else value


_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern, _starts in _SCALARS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _pattern, _starts)
_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.text)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that would be read as something else: numbers, and `none`."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
_Dumper.add_implicit_resolver("!none", re.compile("^[nN]one$"), ["n", "N"])


def parse_value(text: str) -> Any:
    """The value of a setting that is written as YAML; raises yaml.YAMLError."""
    try:
        return _own(yaml.load(text, _Loader))
    except ValueError as error:  # `!!int ten`, or a number of thousands of digits
        raise yaml.YAMLError(str(error)) from None


def dump_yaml(tree: Tree) -> str:
    """`tree` as YAML that is read back as the same values."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False)


def read_tree(path: Path) -> Tree:
    """The settings in the file `path`: JSON if its name ends in .json, YAML if not.

    A name without a folder and without an ending, such as `demo`, may be that of a configuration
    that ships with rlsys; a file of that name in the current folder comes first.

    Raises ConfigError: no file, not UTF-8, no YAML or JSON, a key twice, no settings.
    """
    if not path.is_file() and (shipped := shipped_config(str(path))):
        path = shipped
    try:
        # utf-8-sig: editors on Windows write a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {error.strerror}; {_remedy(path)}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"cannot read the configuration {path}: {reason}; give the path of a YAML file"
        ) from None
    try:
        tree = _parse_json(text) if path.suffix == ".json" else parse_value(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {yaml_reason(error)}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        kind = "list" if isinstance(tree, list) else "single value"
        raise ConfigError(f"{path} is a {kind} at the top level; it must hold `key: value` lines")
    return tree


def _remedy(path: Path) -> str:
    """What to write where there is no file at `path`."""
    if "=" in str(path) or str(path).startswith(("-", "+")):
        return "put the file before all settings"
    if shipped_config(path.stem):
        return f"write {path.stem} for the configuration of that name that ships with rlsys"
    return "give the path of a YAML file, or a name that ships with rlsys, for instance demo"


def yaml_reason(error: yaml.YAMLError) -> str:
    """What is wrong and on which line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    problem = str(error.problem)
    if r"'\t'" in problem:
        problem = "a tab; YAML takes spaces only"
    elif problem == "but found another document":
        problem = "a second document begins; keep one of them"
    return f"line {error.problem_mark.line + 1}: {problem}"


def _parse_json(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> Tree:
        tree = dict(pairs)
        if len(tree) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key '{twice}' is there twice; keep one of the two")
        return tree

    return json.loads(text, object_pairs_hook=once) if text.strip() else None


def _own(value: Any, above: tuple[int, ...] = ()) -> Any:
    """A copy in which an anchor's value is a value of its own wherever it is used.

    Without this, an override of one place would change the others as well.
    """
    if id(value) in above:
        raise yaml.YAMLError("an anchor contains itself; write the value out")
    match value:
        case dict():
            return {key: _own(item, (*above, id(value))) for key, item in value.items()}
        case list():
            return [_own(item, (*above, id(value))) for item in value]
        case _:
            return value
