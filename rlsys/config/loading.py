"""From a YAML file and `key.path=value` words to a checked configuration, and back.

    config = load_config(Path("configs/demo.yaml"), ["steps=10", "algorithm.prior=linear"])
    Path("config.yaml").write_text(dump_config(config))          # loads back equal

Values are taken strictly: `steps: "10"` or `steps: true` is refused, not converted. Every fault
is one sentence on a line of its own (rlsys.config.explain).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import yaml
from pydantic import ValidationError

from rlsys.config import RunConfig
from rlsys.config.base import Section
from rlsys.config.explain import ConfigPath, explain, field_at, variants
from rlsys.errors import ConfigError

Tree = dict[str, Any]
SchemaT = TypeVar("SchemaT", bound=Section)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 with the numbers of YAML 1.2: `3e-4` is a number, not text."""


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that _Loader would take for numbers."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    )


@overload
def load_config(path: Path, overrides: Sequence[str] = ...) -> RunConfig: ...
@overload
def load_config(path: Path | None, overrides: Sequence[str], schema: type[SchemaT]) -> SchemaT: ...
def load_config(
    path: Path | None, overrides: Sequence[str] = (), schema: type[Section] = RunConfig
) -> Section:
    """Read `path`, apply `overrides` and check the whole. Without a path all is from `overrides`.

    A word that changes the kind of a section (`data.train.source=file`) drops those keys of the
    file that the new kind does not have.

    Raises ConfigError with one sentence a line: no file, no YAML, unknown keys, wrong values.
    """
    tree = {} if path is None else _read(path)
    words = sorted(map(_parse_override, overrides), key=lambda word: not _is_kind(schema, word[0]))
    for key_path, value in words:
        _assign(tree, key_path, value, schema)
    try:
        return check_tree(tree, schema)
    except ValidationError as error:
        paths = [key_path for key_path, _ in words]
        details = error.errors(include_url=False)
        file = None if path is None else str(path)
        lines = [explain(detail, schema, file, paths) for detail in details]
        raise ConfigError("\n".join(lines)) from None


def check_tree(tree: Tree, schema: type[SchemaT]) -> SchemaT:
    """The configuration that `tree` holds, defaults written into it where it says nothing.

    Raises pydantic's ValidationError, for the caller knows where the values came from.
    """
    _fill_defaults(tree, schema)
    # JSON mode: strict about types, yet lists become tuples and strings become paths.
    return schema.model_validate_json(json.dumps(tree, default=_plain), strict=True)


def parse_value(text: str) -> Any:
    """The value of a setting that is written as YAML; raises yaml.YAMLError."""
    return yaml.load(text, _Loader)


def dump_config(config: Section) -> str:
    """The whole configuration as YAML, defaults included; load_config gives back an equal one."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False)


def _read(path: Path) -> Tree:
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"cannot read the configuration {path}: {reason}; give the path of a YAML file"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_yaml_reason(error)}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path} is a {type(tree).__name__} at the top level; it must hold `key: value` lines"
        )
    return tree


def _yaml_reason(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def _parse_override(word: str) -> tuple[ConfigPath, Any]:
    key, equals, text = word.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise ConfigError(f"'{word}' must be key.path=value, for instance batch.problems=16")
    try:
        # A shell eats the quotes of key="", so nothing means empty text; `null` says None.
        return path, parse_value(text) if text else ""
    except yaml.YAMLError as error:
        raise ConfigError(
            f"the value of '{word}' is not valid YAML ({_yaml_reason(error)}); put text in quotes"
        ) from None


def _is_kind(schema: type[Section], path: ConfigPath) -> bool:
    """True if `path` names the key that chooses between kinds of a section."""
    field = field_at(schema, path[:-1]) if len(path) > 1 else None
    return field is not None and field.discriminator == path[-1]


def _assign(tree: Tree, path: ConfigPath, value: Any, schema: type[Section]) -> None:
    node = tree
    for depth, key in enumerate(path[:-1], start=1):
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise ConfigError(
                f"'{'.'.join(path)}' on the command line goes into '{'.'.join(path[:depth])}', "
                "which is a value and not a section; set that key as a whole"
            )
        node = child
    field = field_at(schema, path[:-1]) if _is_kind(schema, path) else None
    if field is not None and isinstance(value, str) and value in variants(field):
        known = variants(field)[value].model_fields
        for stale in [key for key in node if key not in known]:
            del node[stale]
    node[path[-1]] = value


def _fill_defaults(tree: Tree, schema: type[Section], whole: Section | None = None) -> None:
    """Write defaults where `tree` says nothing, the kind of a section included.

    They are those of `whole`, the section that would be there if `tree` said nothing at all, so
    that setting one key leaves the others; without it those of the schema.
    """
    for name, field in schema.model_fields.items():
        if whole is None and field.is_required():
            continue
        default = (
            field.get_default(call_default_factory=True, validated_data={})
            if whole is None
            else getattr(whole, name)
        )
        if name not in tree:
            tree[name] = _plain(default) if isinstance(default, Section) else default
        elif isinstance(tree[name], dict) and isinstance(default, Section):
            kind = ""
            if isinstance(field.discriminator, str):
                kind = tree[name].setdefault(
                    field.discriminator, getattr(default, field.discriminator)
                )
            section = variants(field).get(kind) if isinstance(kind, str) else None
            if section is not None:
                _fill_defaults(tree[name], section, default if type(default) is section else None)


def _plain(value: Any) -> Any:
    """What JSON has no word for: sections, alone or in lists, and paths."""
    return value.model_dump(mode="json") if isinstance(value, Section) else str(value)
