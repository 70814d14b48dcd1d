"""From a YAML file and `key.path=value` words to a checked configuration, and back.

    config = load_config(Path("configs/demo.yaml"), ["steps=10", "algorithm.prior=linear"])
    Path("config.yaml").write_text(dump_config(config))          # loads back equal

Values are taken strictly: `steps: "10"` or `steps: true` is refused, not converted. Every fault
is one sentence on a line of its own (rlsys.config.explain).

The steps are files: text to values (reading, words), kinds from outside rlsys (plugins), renamed
keys (renaming), values as they are meant (spelling), and pydantic's check.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from rlsys.config import RunConfig
from rlsys.config.base import Section
from rlsys.config.explain import ConfigPath, explain, field_at, place, variants
from rlsys.config.plugins import BASES, extended_schema, kind_key
from rlsys.config.reading import Tree, dump_yaml, read_tree
from rlsys.config.renaming import renamed_keys, translate
from rlsys.config.spelling import as_meant
from rlsys.config.words import parse_words
from rlsys.errors import ConfigError

SchemaT = TypeVar("SchemaT", bound=Section)
Settings = Sequence[tuple[ConfigPath, Any]]


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
    tree = {} if path is None else read_tree(path)
    file = None if path is None else str(path)
    settings = parse_words(overrides)
    if schema is RunConfig:
        schema = _schema_of(tree, settings, file)
    for key_path, value in sorted(settings, key=lambda setting: not _is_kind(schema, setting[0])):
        _assign(tree, key_path, value, schema)
    _refuse_renamed(tree, schema, file, [key_path for key_path, _ in settings])
    return _checked(tree, schema, file, [key_path for key_path, _ in settings])


def load_recorded(path: Path) -> RunConfig:
    """The configuration that a run left in its folder, also under the keys of older versions.

    Raises ConfigError like load_config.
    """
    tree = read_tree(path)
    schema = _schema_of(tree, (), str(path))
    translate(tree, schema)
    return _checked(tree, schema, str(path), ())


def check_tree(tree: Tree, schema: type[SchemaT]) -> SchemaT:
    """The configuration that `tree` holds, defaults written into it where it says nothing.

    Raises pydantic's ValidationError, for the caller knows where the values came from.
    """
    _fill_defaults(tree, schema)
    # JSON mode: strict about types, yet lists become tuples and strings become paths.
    text = json.dumps(as_meant(tree, schema), default=to_jsonable_python)
    return schema.model_validate_json(text, strict=True)


def dump_config(config: Section) -> str:
    """The whole configuration as YAML, defaults included; load_config gives back an equal one."""
    return dump_yaml(config.model_dump(mode="json"))


def _checked(
    tree: Tree, schema: type[SchemaT], file: str | None, overrides: Sequence[ConfigPath]
) -> SchemaT:
    try:
        return check_tree(tree, schema)
    except ValidationError as error:
        details = error.errors(include_url=False)
        lines = [explain(detail, schema, file, overrides) for detail in details]
        raise ConfigError("\n".join(lines)) from None


def _schema_of(tree: Tree, settings: Settings, file: str | None) -> type[RunConfig]:
    """RunConfig, extended by the kinds that the file or the command line names by import path."""
    kinds, places = {}, {}
    for section in BASES:
        key = kind_key(section)
        node = tree.get(section)
        kind, where = node.get(key) if isinstance(node, dict) else None, place((), file, ())
        # Like load_config: first the word that sets the kind, then one that sets the whole section.
        for path, value in sorted(settings, key=lambda setting: -len(setting[0])):
            if path == (section, key):
                kind, where = value, place((), None, ())
            elif path == (section,) and isinstance(value, dict):
                kind, where = value.get(key), place((), None, ())
        if isinstance(kind, str) and ":" in kind:
            kinds[section], places[section] = str(kind), where
    return extended_schema(kinds, places)


def _refuse_renamed(
    tree: Tree, schema: type[Section], file: str | None, overrides: Sequence[ConfigPath]
) -> None:
    lines = [
        f"the key '{'.'.join(old)}' {place(old, file, overrides)} is now called "
        f"'{'.'.join(new)}'; write it so"
        for old, new in renamed_keys(tree, schema)
    ]
    if lines:
        raise ConfigError("\n".join(lines))


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
            tree[name] = to_jsonable_python(default) if isinstance(default, Section) else default
        elif isinstance(tree[name], dict) and isinstance(default, Section):
            kind = ""
            if isinstance(field.discriminator, str):
                kind = tree[name].setdefault(
                    field.discriminator, getattr(default, field.discriminator)
                )
            section = variants(field).get(kind) if isinstance(kind, str) else None
            if section is not None:
                _fill_defaults(tree[name], section, default if type(default) is section else None)
