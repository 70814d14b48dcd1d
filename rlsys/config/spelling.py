"""Values as they are meant: spellings that only the type of a field makes clear.

    16,32 or 16       a list              where a list of plain values is asked for
    none, None        null                where null is allowed and `none` is no word of the field
    yes, no, on, off  true, false         where a truth value is asked for
    1e3, 100.0        1000, 100           where an integer is asked for

Text in quotes stays text, and everything else stays as it is: the schema refuses what is wrong.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from rlsys.config.base import Section
from rlsys.config.explain import item_field, variants
from rlsys.config.reading import Tree, Unquoted, parse_value

_TRUTH = {"yes": True, "on": True, "no": False, "off": False}
_BRACKET = re.compile(r"[\[\]()]|(?<!\$)\{")
"""Other ways to write a list, which are refused. `${NAME}` in a path is none."""


def as_meant(tree: Tree, schema: type[Section]) -> Tree:
    """A copy of `tree` with the values of `schema`'s fields as they are meant."""
    meant = dict(tree)
    for name in tree.keys() & schema.model_fields.keys():
        meant[name] = _meant_field(tree[name], schema.model_fields[name])
    return meant


def _meant_field(value: object, field: FieldInfo) -> object:
    """`value` as the field means it; items of a section with chosen keys are fields as well."""
    if isinstance(field.discriminator, str) and isinstance(value, dict):
        kind = value.get(field.discriminator)
        section = variants(field).get(kind) if isinstance(kind, str) else None
        return as_meant(value, section) if section is not None else value
    item = item_field(field)
    if item is not None and isinstance(value, dict):
        return {key: _meant_field(part, item) for key, part in value.items()}
    return _meant(value, field.annotation)


def _meant(value: object, annotation: object) -> object:
    """`value` as a field of type `annotation` means it."""
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _meant(value, members[0])
    if origin in (Union, UnionType):
        return _meant_of_union(value, members)
    if origin is tuple or origin is list:
        return _meant_list(value, members if origin is tuple else (*members, ...))
    if origin is dict and isinstance(value, dict):
        return {key: _meant(item, members[1]) for key, item in value.items()}
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return as_meant(value, annotation) if isinstance(value, dict) else value
    if annotation is bool and isinstance(value, Unquoted):
        return _TRUTH.get(value.lower(), value)
    if annotation is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _meant_of_union(value: object, members: tuple[object, ...]) -> object:
    if NoneType in members and isinstance(value, Unquoted) and value.lower() == "none":
        words = [
            word for member in members if get_origin(member) is Literal for word in get_args(member)
        ]
        return value if value in words else None
    others = [member for member in members if member is not NoneType]
    if len(others) == 1:
        return _meant(value, others[0])
    return _meant(value, bool) if bool in others else value


def _meant_list(value: object, members: tuple[object, ...]) -> object:
    if isinstance(value, list):
        # tuple[int, ...] has one type for all items, tuple[int, int] one for each.
        types = members[:1] * len(value) if members[1:] == (...,) else members
        meant = [_meant(item, kind) for item, kind in zip(value, types, strict=False)]
        return [*meant, *value[len(meant) :]]
    if not all(_is_plain(member) for member in members if member is not ...):
        return value
    if isinstance(value, Unquoted):
        return value if _BRACKET.search(value) else _meant_list(_split(value), members)
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return _meant_list([value], members) if plain else value


def _split(text: Unquoted) -> list[object]:
    """The values between the commas of `text`; the text itself if one of them is no YAML."""
    try:
        return [parse_value(part) for part in text.removesuffix(",").split(",")]
    except yaml.YAMLError:
        return [text]


def _is_plain(annotation: object) -> bool:
    """True for the types whose values are single words or numbers."""
    if get_origin(annotation) is Annotated:
        return _is_plain(get_args(annotation)[0])
    return get_origin(annotation) is Literal or annotation in (str, int, float, Path)
