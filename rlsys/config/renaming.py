"""Keys that have another name now: refused with the new name, or moved in what older runs wrote."""

from __future__ import annotations

from typing import Any, Final

from rlsys.config.base import Section
from rlsys.config.explain import ConfigPath, field_at
from rlsys.config.reading import Tree

RENAMED: Final[dict[str, str]] = {
    "environment.revision.reader": "environment.revision.model",
    "environment.revision.reader_generation": "environment.revision.generation",
    "reader": "reflection_model",
    "reader_generation": "reflection_generation",
}
"""Old dotted key to new one; what is inside a section moves along. An entry applies to the schemas
that have the new key and not the old one."""


def renamed_keys(tree: Tree, schema: type[Section]) -> list[tuple[ConfigPath, ConfigPath]]:
    """Old and new path of every key of `tree` that `schema` has under a new name only."""
    pairs = [(tuple(old.split(".")), tuple(new.split("."))) for old, new in RENAMED.items()]
    return [
        (old, new)
        for old, new in pairs
        if _holder(tree, old) is not None
        and field_at(schema, old) is None
        and field_at(schema, new) is not None
    ]


def translate(tree: Tree, schema: type[Section]) -> None:
    """Move the values of renamed keys to where `schema` has them; a value there already stays."""
    for old, new in renamed_keys(tree, schema):
        holder = _holder(tree, old)
        assert holder is not None
        value = holder.pop(old[-1])
        node = tree
        for key in new[:-1]:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        node.setdefault(new[-1], value)


def _holder(tree: Tree, path: ConfigPath) -> Tree | None:
    """The section of `tree` that has the last key of `path`, if there is one."""
    node: Any = tree
    for key in path[:-1]:
        node = node.get(key) if isinstance(node, dict) else None
    return node if isinstance(node, dict) and path[-1] in node else None
