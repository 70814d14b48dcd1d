"""What pydantic found wrong, as one sentence each: the value, the place and the remedy.

    unknown key 'batch.problem' in demo.yaml; did you mean 'batch.problems'?
    algorithm.prior is 'unifrom' on the command line but should be 'base', 'uniform' or 'linear'

The schema is walked beside pydantic's error locations, which name the chosen kind of a section
(`data.train.file.path`) where a user writes `data.train.path`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rlsys.config.base import Section

ConfigPath = tuple[str, ...]


def variants(field: FieldInfo) -> dict[str, type[Section]]:
    """Kind to section of a discriminated field; {"": section} of a plain section, {} of a value.

    A section that may be null is a plain one.
    """
    if isinstance(field.discriminator, str):
        kinds: tuple[type[Section], ...] = get_args(field.annotation)
        return {kind.model_fields[field.discriminator].default: kind for kind in kinds}
    annotation = field.annotation
    if type(None) in (members := get_args(annotation)):
        annotation = members[0]
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return {"": annotation}
    return {}


def item_field(field: FieldInfo) -> FieldInfo | None:
    """The field of each item, if the field is a section whose keys the user chooses; else None."""
    if get_origin(field.annotation) is not dict:
        return None
    return FieldInfo.from_annotation(get_args(field.annotation)[1])


def field_at(schema: type[Section], path: ConfigPath) -> FieldInfo | None:
    """The field that `path` names in any kind of the sections on the way, or None."""
    sections, field, item = [schema], None, None
    for key in path:
        known = next((s.model_fields[key] for s in sections if key in s.model_fields), None)
        field = known if item is None else item
        if field is None:
            return None
        sections, item = list(variants(field).values()), item_field(field)
    return field


def explain(
    error: ErrorDetails, schema: type[Section], file: str | None, overrides: Sequence[ConfigPath]
) -> str:
    """One sentence for one pydantic error.

    `file` is the configuration file's name, None without one, and `overrides` the paths set on the
    command line: they tell where the value came from.
    """
    path, owner, items = _locate(schema, error["loc"])
    dotted = ".".join(path) + items
    where = place(path, file, overrides)
    context = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key '{dotted}' {where}; {_nearest(schema, owner, path)}"
        case "missing" if not items:
            return f"{dotted} is missing {where}; add a line or the word {dotted}=VALUE"
        case "missing":
            whole, value = ".".join(path), _shorten(error["input"])
            return f"{whole} holds {value} {where} but should have more items there"
        case "value_error":
            reason = str(context["error"])
            key = "" if not dotted or dotted in reason else f"{dotted}: "
            source = where.removeprefix("in ").removeprefix("on ") if path else file
            return f"{source or 'the command line'}: {key}{reason}"
        case "union_tag_invalid":
            tag, expected = context["tag"], context["expected_tags"]
            key = f"{dotted}.{context['discriminator'].strip(chr(39))}"
            hint = _similar(tag, expected) or _import_path(key, tag)
            return f"{key} is {tag!r} {where} but should be one of {expected}{hint}"
        case _:
            value, hint = _shorten(error["input"]), _kind_for_section(schema, path, error)
            return f"{dotted} is {value} {where} but should {_expectation(error)}{hint}"


def _locate(
    schema: type[Section], location: tuple[int | str, ...]
) -> tuple[ConfigPath, type[Section], str]:
    """Keys as a user writes them, the section that owns the last one, list indices as text."""
    path: list[str] = []
    owner, kinds, items = schema, dict[str, type[Section]](), ""
    item: FieldInfo | None = None
    for part in location:
        if isinstance(part, int):
            items += f"[{part}]"
        elif part in kinds:
            owner, kinds = kinds[part], {}
        else:
            owner = kinds.get("", owner)
            path.append(part)
            field = owner.model_fields.get(part) if item is None else item
            kinds = variants(field) if field is not None else {}
            item = item_field(field) if field is not None else None
    return tuple(path), owner, items


def place(path: ConfigPath, file: str | None, overrides: Sequence[ConfigPath]) -> str:
    """Where the value at `path` was written; see `explain`."""
    if file is None:
        return "on the command line"
    for override in overrides:
        if override[: len(path)] == path or path[: len(override)] == override:
            return "on the command line"
    return f"in {file}"


def _nearest(schema: type[Section], owner: type[Section], path: ConfigPath) -> str:
    """The most similar key beside it, the same key elsewhere, or the keys there are."""
    *parents, key = path
    if "." in key and field_at(schema, (*parents, *key.split("."))) is not None:
        outer, inner = key.split(".", 1)
        return f"in a file write '{outer}:' and, indented on a line below it, '{inner}: VALUE'"
    prefix = "".join(f"{parent}." for parent in parents)
    containing = [name for name in owner.model_fields if key in name]
    if beside := get_close_matches(key, owner.model_fields, n=1) or containing:
        return f"did you mean '{prefix}{beside[0]}'?"
    parent_field = field_at(schema, tuple(parents)) if parents else None
    if parent_field is not None:
        for kind, section in variants(parent_field).items():
            if key in section.model_fields:
                tag = f"{prefix}{parent_field.discriminator}"
                return f"it belongs to {tag} '{kind}', set {tag}={kind} to use it"
    everywhere = {found[-1]: ".".join(found) for found in reversed([*_all_paths(schema)])}
    if elsewhere := get_close_matches(key, everywhere, n=1, cutoff=0.8):
        return f"did you mean '{everywhere[elsewhere[0]]}'?"
    return f"the keys there are {', '.join(owner.model_fields)}"


def _all_paths(schema: type[Section], prefix: ConfigPath = ()) -> Iterator[ConfigPath]:
    for name, field in schema.model_fields.items():
        yield (*prefix, name)
        for section in variants(field).values():
            yield from _all_paths(section, (*prefix, name))


def _expectation(error: ErrorDetails) -> str:
    """What pydantic wants, in words that fit after "should"."""
    message = error["msg"].removeprefix("Input should ")
    if error["type"] == "tuple_type":
        return "be a list, for instance [1, 2]"
    if error["type"] == "int_type" and re.fullmatch(r"[-+]?0\d+", str(error["input"])):
        return f"{message}; write {int(error['input'])}"
    if error["type"] == "literal_error":
        expected = str(error.get("ctx", {})["expected"])
        return f"be {expected}{_similar(error['input'], expected)}"
    if error["type"].startswith(("model", "dict")):
        return "be a section of `key: value` lines"
    if error["type"] in ("too_short", "too_long"):
        bounds = error.get("ctx", {})
        if "min_length" in bounds:
            return f"have {bounds['min_length']} or more items"
        return f"have {bounds['max_length']} or fewer items"
    return message


def _import_path(key: str, tag: str) -> str:
    """How the class that `tag` seems to mean is written where an import path may stand."""
    module, dot, name = tag.rpartition(".")
    if not dot or key not in ("environment.type", "algorithm.method"):
        return ""
    return f"; a class outside rlsys is written {module}:{name}"


def _kind_for_section(schema: type[Section], path: ConfigPath, error: ErrorDetails) -> str:
    """What to set in the place of a section, if a kind stands there."""
    field = field_at(schema, path)
    if field is None or not isinstance(field.discriminator, str):
        return ""
    known = isinstance(error["input"], str) and error["input"] in variants(field)
    key = f"{'.'.join(path)}.{field.discriminator}"
    return f"; write {key}={error['input']}" if known else ""


def _similar(value: Any, expected: str) -> str:
    names = [name for name in expected.split("'") if name.isidentifier()]
    close = get_close_matches(str(value), names, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
