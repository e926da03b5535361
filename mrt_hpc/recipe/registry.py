"""The classes that the ``type`` of a section may name: those of the package, and classes of the user's own.

A section whose meaning is open (an algorithm, a prover, a verifier) is written as one class: its fields are the fields
of the recipe, and its methods are what the run calls. This module knows where these classes are, and nothing of what
they do: they lie in higher packages, and are imported by name.
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
from types import FunctionType, ModuleType
from typing import Annotated, Any, Generic, TypeVar

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from mrt_hpc.errors import nearest
from mrt_hpc.recipe.base import Section

S = TypeVar("S", bound=Section)
NO_CLASS = "no_class"
"""The kind of fault of a ``type`` that names no class of its kind."""
NEAREST = "is the nearest"
LOOKING = "looking"
"""The context of a validation that imports no class of the user's own."""


class NotImported(Section):
    """A section of a class of the user's own, for commands that only look at a run: its type is a text, and its fields
    are plain values.
    """

    model_config = ConfigDict(extra="allow")

    type: str


@dataclass(frozen=True)
class Registry(Generic[S]):
    """The classes that one kind of section may have.

    Used as metadata of a field, ``Annotated[AlgorithmSettings, ALGORITHMS]``: the section's ``type`` then decides which
    class checks it. A ``type`` with a colon, as in ``my_module:MyAlgorithm``, names a class of the user's own.
    """

    kind: str
    """The kind in words, for messages: algorithm, prover, verifier, way of evaluating."""
    base: str
    """The ``module:Class`` that all of them extend."""
    built_in: Mapping[str, str]
    """Name to ``module:Class``."""
    of_functions: str | None = None
    """The ``module:Class`` of a section that stands for a function of the user's own, whose name is its ``type``; None
    where only a class will do. Such a section may also be written as its type alone.
    """

    def __hash__(self) -> int:
        return hash(self.kind)

    @cached_property
    def classes(self) -> tuple[type[S], ...]:
        """The classes of the package, in the order of the table."""
        return tuple(imported(where) for where in self.built_in.values())

    @property
    def union(self) -> Any:
        """Their discriminated union, as pydantic takes it."""
        return Annotated[reduce(or_, self.classes), Field(discriminator="type")]

    @cached_property
    def _adapter(self) -> TypeAdapter[S]:
        return TypeAdapter(self.union)

    def find(self, name: str) -> type[Section] | None:
        """The class that a ``type`` names, of the package or of the user's own; None where it names none."""
        if where := self.built_in.get(name):
            return imported(where)
        try:
            return self.of_user(name) if ":" in name else None
        except PydanticCustomError:
            return None

    def of_user(self, name: str) -> type[Section]:
        """The class that ``module:Class`` names, or that which stands for ``module:function``.

        Raises:
            PydanticCustomError: there is no such module or class, or the class is of another kind, or lacks something;
                the error says what the module has instead.
        """
        module, _, called = name.partition(":")
        content = vars(_module(module, name))
        wanted: type[S] = imported(self.base)
        if called not in content:
            raise _no_class(self._instead(content, called, f"{module} has no `{called}`"))
        named = content[called]
        is_own = module.partition(".")[0] not in sys.stdlib_module_names
        if isinstance(named, FunctionType) and self.of_functions is not None and is_own:
            return imported(self.of_functions)
        if not (isinstance(named, type) and issubclass(named, wanted)):
            raise _no_class(self._instead(content, called, f"{name} is none"))
        if missing := sorted(named.__abstractmethods__):
            raise _no_class(f"a class with the method {' and '.join(missing)}, which {name} lacks: {self.base}")
        if "type" not in named.model_fields:
            raise _no_class(f"a class with the line `type: str` among its fields, which {name} lacks")
        return named

    def _instead(self, content: Mapping[str, Any], called: str, fault: str) -> str:
        """What a ``type`` may name, where a module does not have it: what is in the module."""
        wanted = imported(self.base)
        own = {
            name: value
            for name, value in content.items()
            if getattr(value, "__module__", "") == content["__name__"] and not name.startswith("_")
        }
        fitting = [name for name, value in own.items() if isinstance(value, type) and issubclass(value, wanted)]
        if self.of_functions is not None:
            fitting += [name for name, value in own.items() if isinstance(value, FunctionType)]
        guess, kind = nearest(called, fitting), f"a class of kind {self.kind} (it extends {self.base})"
        if self.of_functions is not None:
            kind += ", or a function"
        has = f"{content.get('__file__')} has {', '.join(fitting) or 'none'}"
        return f"{_nearest(guess)}{kind}: {fault}, and {has}"

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Built-in classes are checked as a union, so that each fault has its place in the file. They are imported with
        the first value, as their modules import the recipe. What was read from a file is checked as JSON, where a list
        may fill a tuple.
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
                return self.of_user(name).model_validate_json(json.dumps(value), strict=True)
            if info.mode == "json":
                return self._adapter.validate_json(json.dumps(value), strict=True)
            return self._adapter.validate_python(value)

        return core_schema.with_info_plain_validator_function(
            check, serialization=core_schema.plain_serializer_function_ser_schema(_dumped, info_arg=True)
        )


def _dumped(section: Section, info: core_schema.SerializationInfo) -> dict[str, Any]:
    return section.model_dump(
        mode=info.mode,
        exclude_unset=info.exclude_unset,
        exclude_defaults=info.exclude_defaults,
        exclude_none=info.exclude_none,
    )


def _nearest(guess: str | None) -> str:
    """The beginning of a sentence about a wrong name."""
    return f"{guess} {NEAREST}; " if guess else ""


def _no_class(instead: str) -> PydanticCustomError:
    """The refusal of a ``type``, with what it may be."""
    return PydanticCustomError(NO_CLASS, "{instead}", {"instead": instead})


def imported(where: str) -> Any:
    """What ``module:name`` names.

    Raises:
        ImportError, AttributeError, ValueError: there is no such module, or no such name in it.
    """
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def _module(module: str, name: str) -> ModuleType:
    """The module of a class of the user's own.

    Raises:
        PydanticCustomError: there is none, or its code fails when it is imported; the error names the line.
    """
    if not all(part.isidentifier() for part in module.split(".")):
        raise _no_class(f"module:Class, and {module!r} cannot be the name of a module")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _broken(module, error) from error
        guess = nearest(module, _modules_of_user())
        found = _nearest(guess and f"{guess}:{name.partition(':')[2]}")
        what = "module:Class of a module that is installed, or lies beside the file that names it"
        raise _no_class(f"{found}{what}: Python finds no module `{error.name}`") from error
    except (Exception, SystemExit) as error:  # whatever the user's code raises is a fault of the user's file
        raise _broken(module, error) from error


def _broken(module: str, error: BaseException) -> PydanticCustomError:
    """The refusal of a module whose code fails, with the last line of it that ran."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
    else:
        ran = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_of_import(frame.filename)]
        place = f"{ran[-1].filename}, line {ran[-1].lineno}" if ran else module
    return _no_class(f"a module that can be imported; {place}: {type(error).__name__}: {error}")


def _is_of_import(file: str) -> bool:
    """Whether a line that ran is one of the machinery of imports, and not of what is imported."""
    return file.startswith("<frozen importlib") or file in (__file__, importlib.__file__)


def _modules_of_user() -> list[str]:
    """The modules that can be imported and are not installed: those beside a recipe, a site or this command."""
    installed = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [folder for folder in sys.path if not any(folder.startswith(place) for place in installed)]
    return [found.name for found in pkgutil.iter_modules(folders)]
