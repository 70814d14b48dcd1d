"""Environments and algorithms from outside rlsys, named by import path.

    environment:
      type: my_package.my_env:MyEnvironment

The class has an attribute `Config`, a subclass of EnvironmentConfig (AlgorithmConfig for
`algorithm.method`) with the keys of its section. A configuration that names such classes gets a
schema of its own: RunConfig, with one more kind of environment or algorithm. To everything that
reads schemas the new kind is like the others.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, create_model

from rlsys.config.algorithms import AlgorithmConfig
from rlsys.config.base import Section
from rlsys.config.environments import EnvironmentConfig
from rlsys.config.run import RunConfig
from rlsys.errors import ConfigError

BASES: Final[dict[str, type[Section]]] = {
    "environment": EnvironmentConfig,
    "algorithm": AlgorithmConfig,
}
"""Sections whose kind may be an import path, and the base of the user's `Config`."""
EXAMPLE: Final = "my_package.my_module:MyClass"

_NAME = r"[^\W\d]\w*"
_IMPORT_PATH = re.compile(rf"({_NAME}(?:\.{_NAME})*):({_NAME})")


def kind_key(section: str) -> str:
    """The key that says the kind of `section`: environment.type, algorithm.method."""
    key = RunConfig.model_fields[section].discriminator
    assert isinstance(key, str)
    return key


def extended_schema(
    kinds: Mapping[str, str], places: Mapping[str, str] | None = None
) -> type[RunConfig]:
    """RunConfig with the kinds of {section: import path}; RunConfig itself without any.

    `places` says where each import path was written, for instance "in run.yaml".

    Raises ConfigError: nothing can be imported from the path, or it is no environment or algorithm.
    """
    for section, import_path in kinds.items():
        _load_class(section, import_path, (places or {}).get(section, ""))
    return _schema(tuple(sorted(kinds.items()))) if kinds else RunConfig


def environment_class(config: RunConfig) -> type[Any] | None:
    """The class that environment.type names by import path; None for a kind of rlsys' own."""
    return _class_of(config, "environment")


def algorithm_class(config: RunConfig) -> type[Any] | None:
    """The class that algorithm.method names by import path; None for a method of rlsys' own."""
    return _class_of(config, "algorithm")


def _class_of(config: RunConfig, section: str) -> type[Any] | None:
    kind = str(getattr(getattr(config, section), kind_key(section)))
    return _load_class(section, kind) if ":" in kind else None


@cache
def _schema(kinds: tuple[tuple[str, str], ...]) -> type[RunConfig]:
    # Cached, because pydantic takes equal values of two classes for different ones.
    fields: dict[str, Any] = {}
    for section, import_path in kinds:
        known = RunConfig.model_fields[section]
        union = known.annotation | _section(section, import_path)
        options = Field(discriminator=kind_key(section), description=known.description)
        fields[section] = (Annotated[union, options], known.default)
    return create_model("RunConfig", __base__=_PickledRun, **fields)


@cache
def _section(section: str, import_path: str) -> type[Section]:
    """The user's `Config`, with the import path as the only value of its kind."""
    config: type[Section] = _load_class(section, import_path).Config
    kind: Any = (Literal[import_path], import_path)
    return create_model(
        config.__name__,
        __base__=(_PickledSection, config),
        __doc__=config.__doc__,
        **{kind_key(section): kind},
    )


def _load_class(section: str, import_path: str, place: str = "") -> type[Any]:
    """The class at `import_path`, known to have a `Config` of the right base."""

    def refusal(problem: str) -> ConfigError:
        key = f"{section}.{kind_key(section)}"
        return ConfigError(f"{key} is {import_path!r} {place}".rstrip() + f" but {problem}")

    parts = _IMPORT_PATH.fullmatch(import_path)
    if parts is None:
        raise refusal(f"an import path is written like {EXAMPLE}")
    module_name, name = parts.groups()
    try:
        module = _import(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise refusal(f"importing {module_name} fails: {error}; install it") from error
        raise refusal(
            f"there is no module {error.name} on the Python path or in {os.getcwd()}; install it, "
            "or start rlsys in the folder that holds it"
        ) from None
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise refusal(f"importing {module_name} fails with {reason}; correct the module") from error
    found = getattr(module, name, None)
    base, where = BASES[section], getattr(module, "__file__", None) or module_name
    if not isinstance(found, type):
        problem = "has no class" if found is None else f"has a {type(found).__name__}, no class,"
        raise refusal(f"{where} {problem} {name}; name one of {_candidates(module, base)}")
    if not _has_config(found, base):
        problem = "has a Config of another base" if hasattr(found, "Config") else "has no Config"
        raise refusal(
            f"class {name} {problem}; define in it `class Config(rlsys.config.{base.__name__})` "
            "with the keys of its section"
        )
    return found


def _import(module_name: str) -> ModuleType:
    # Python itself searches the current folder only for scripts and `python -m`. It goes behind all
    # other folders: libraries are imported as late as in the workers of a run, and in front of them
    # a file or folder of the user called `datasets` or `ray` would be imported in their place.
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(module_name)


def _candidates(module: ModuleType, base: type[Section]) -> str:
    """The names of the classes of `module` that would do."""
    names = [name for name, value in vars(module).items() if _has_config(value, base)]
    return (
        ", ".join(names) or f"its classes that have a Config of base rlsys.config.{base.__name__}"
    )


def _has_config(value: object, base: type[Section]) -> bool:
    config = getattr(value, "Config", None)
    return isinstance(value, type) and isinstance(config, type) and issubclass(config, base)


class _PickledRun(RunConfig):
    """Pickles by value: the class of a run with import paths is made anew where it arrives."""

    def __reduce__(self) -> tuple[Any, ...]:
        kinds = {
            section: kind
            for section in BASES
            if ":" in (kind := getattr(getattr(self, section), kind_key(section)))
        }
        return _restore_run, (kinds, _values(self))


class _PickledSection(Section):
    """The same for a section by itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        section = next(name for name, base in BASES.items() if isinstance(self, base))
        return _restore_section, (section, getattr(self, kind_key(section)), _values(self))


def _values(config: BaseModel) -> str:
    # Not model_dump_json, which writes null for an infinite importance_cap.
    return json.dumps(config.model_dump(mode="json"))


def _restore_run(kinds: dict[str, str], values: str) -> RunConfig:
    return extended_schema(kinds).model_validate_json(values, strict=True)


def _restore_section(section: str, import_path: str, values: str) -> Section:
    return _section(section, import_path).model_validate_json(values, strict=True)
