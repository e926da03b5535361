"""The classes that the ``type`` of a section may name: those of the package, and the user's own.

A section whose meaning is open (an algorithm, a prover, a verifier) is one class: its fields are the recipe's, its
methods are what the run calls. These classes lie in higher packages, and are imported by name.
"""

import importlib
import json
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Annotated, Any, Generic, TypeVar

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

import mrt_hpc
from mrt_hpc.errors import nearest
from mrt_hpc.recipe.base import Section

S = TypeVar("S", bound=Section)
NO_CLASS = "no_class"
NEAREST = "is the nearest"
MARK = "is_verifier"
"""A function of an installed package has it if it compares an answer with a gold answer."""
INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
INSTALLED_BELOW = frozenset({"site-packages", "dist-packages"})
"""Folders of packages, also of another Python or of the user alone."""
LOOKING = "looking"
"""Such a validation imports no class of the user's own."""


class NotImported(Section):
    """A section of the user's own class, for commands that only look at a run."""

    model_config = ConfigDict(extra="allow")

    type: str


@dataclass(frozen=True)
class Registry(Generic[S]):
    """The classes that one kind of section may have, as metadata of a field: with ``Annotated[AlgorithmSettings,
    ALGORITHMS]`` the section's ``type`` decides which class checks it. ``my_module:MyAlgorithm`` names a class of the
    user's own.
    """

    kind: str
    """For messages: algorithm, prover, verifier, way of evaluating."""
    base: str
    """``module:Class`` that all of them extend."""
    built_in: Mapping[str, str]
    """Name to ``module:Class``."""
    of_functions: str | None = None
    """``module:Class`` of the section for a function of the user's own, which ``type`` names; None where only a class
    will do. Such a section may be its type alone.
    """

    def __hash__(self) -> int:
        return hash(self.kind)

    @cached_property
    def classes(self) -> tuple[type[S], ...]:
        """The package's classes, in the table's order."""
        return tuple(import_name(where) for where in self.built_in.values())

    @property
    def union(self) -> Any:
        return Annotated[reduce(or_, self.classes), Field(discriminator="type")]

    @cached_property
    def _adapter(self) -> TypeAdapter[S]:
        return TypeAdapter(self.union)

    def find(self, name: str) -> type[Section] | None:
        if where := self.built_in.get(name):
            return import_name(where)
        try:
            return self.user_class(name) if ":" in name else None
        except PydanticCustomError:
            return None

    def user_class(self, name: str) -> type[Section]:
        """The user's own class, or the one that stands for ``module:function``. A refusal says what the module has
        instead.
        """
        module, _, called = name.partition(":")
        content = vars(_module(module, name))
        wanted: type[S] = import_name(self.base)
        if called not in content:
            raise _no_class(self._instead(content, called, f"{module} has no `{called}`"))
        named = content[called]
        if self.of_functions is not None and _may_judge(named, content):
            return import_name(self.of_functions)
        if not (isinstance(named, type) and issubclass(named, wanted)):
            raise _no_class(self._instead(content, called, f"{name} is none"))
        if missing := sorted(named.__abstractmethods__):
            raise _no_class(f"a class with the method {' and '.join(missing)}, which {name} lacks: {self.base}")
        if "type" not in named.model_fields:
            raise _no_class(f"a class with the line `type: str` among its fields, which {name} lacks")
        return named

    def _instead(self, content: Mapping[str, Any], called: str, fault: str) -> str:
        wanted, here = import_name(self.base), content["__name__"]
        public = {name: value for name, value in content.items() if not name.startswith("_")}
        own = {name: value for name, value in public.items() if getattr(value, "__module__", "") == here}
        fitting = [name for name, value in own.items() if isinstance(value, type) and issubclass(value, wanted)]
        kind = f"a class of kind {self.kind} (it extends {self.base})"
        if self.of_functions is not None:
            fitting += [name for name, value in own.items() if _may_judge(value, content)]
            kind += f", or a function (of an installed package one with the attribute {MARK} = True)"
        guess = nearest(called, fitting)
        has = f"{content.get('__file__')} has {', '.join(fitting) or 'none'}"
        return f"{_nearest(guess)}{kind}: {fault}, and {has}"

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Built-in classes are a union, so that each fault has its place in the file. They are imported with the first
        value, as their modules import the recipe. Content of files is checked as JSON, where a list may fill a tuple.
        """

        def check(value: Any, info: core_schema.ValidationInfo) -> Any:
            if isinstance(value, Section):
                return value
            if isinstance(value, str) and self.of_functions is not None:
                value = {"type": value}
            name = value.get("type") if isinstance(value, dict) else None
            if isinstance(name, str) and ":" in name:
                if info.context == LOOKING:
                    return NotImported.model_validate_json(json.dumps(value), strict=True)
                return self.user_class(name).model_validate_json(json.dumps(value), strict=True, context=info.context)
            if info.mode == "json":
                return self._adapter.validate_json(json.dumps(value), strict=True, context=info.context)
            return self._adapter.validate_python(value, context=info.context)

        return core_schema.with_info_plain_validator_function(
            check, serialization=core_schema.plain_serializer_function_ser_schema(_dump_section, info_arg=True)
        )


def _dump_section(section: Section, info: core_schema.SerializationInfo) -> dict[str, Any]:
    left_out: Any = {f"exclude_{kind}": getattr(info, f"exclude_{kind}") for kind in ("unset", "defaults", "none")}
    return section.model_dump(mode=info.mode, **left_out)


def _may_judge(named: object, content: Mapping[str, Any]) -> bool:
    """A function beside a recipe or in a run. In an installed package it has to say so itself, as others do anything
    with two texts.
    """
    if not isinstance(named, FunctionType):
        return False
    file = content.get("__file__")
    return getattr(named, MARK, False) is True or (file is not None and not is_installed(Path(file)))


def is_installed(path: Path) -> bool:
    """Whether it belongs to this program or to Python, or was installed."""
    places = [Path(mrt_hpc.__file__).parent, *(Path(sysconfig.get_path(kind)) for kind in INSTALLED)]
    return not INSTALLED_BELOW.isdisjoint(path.parts) or any(path.is_relative_to(place) for place in places)


def _nearest(guess: str | None) -> str:
    return f"{guess} {NEAREST}; " if guess else ""


def _no_class(instead: str) -> PydanticCustomError:
    return PydanticCustomError(NO_CLASS, "{instead}", {"instead": instead})


def import_name(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def _module(module: str, name: str) -> ModuleType:
    """The module of the user's own class; an error names the failing line."""
    if not all(part.isidentifier() for part in module.split(".")):
        raise _no_class(f"module:Class, and {module!r} cannot be the name of a module")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _broken_module_error(module, error) from error
        # Modules beside a recipe, a site or this command, which are not installed.
        folders = [folder for folder in sys.path if not is_installed(Path(folder))]
        guess = nearest(module, [found.name for found in pkgutil.iter_modules(folders)])
        found = _nearest(guess and f"{guess}:{name.partition(':')[2]}")
        what = "module:Class of a module that is installed, or lies beside the file that names it"
        raise _no_class(f"{found}{what}: Python finds no module `{error.name}`") from error
    except (Exception, SystemExit) as error:  # whatever the user's code raises is a fault of the user's file
        raise _broken_module_error(module, error) from error


def _broken_module_error(module: str, error: BaseException) -> PydanticCustomError:
    """The error shows the last line of the module that ran."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
    else:
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen importlib")
        ]
        ran = [frame for frame in frames if frame.filename not in (__file__, importlib.__file__)]
        place = f"{ran[-1].filename}, line {ran[-1].lineno}" if ran else module
    return _no_class(f"a module that can be imported; {place}: {type(error).__name__}: {error}")
