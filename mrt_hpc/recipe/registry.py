"""The classes that the ``type`` of a section may name: those of the package, and classes of the user's own.

A section whose meaning is open (an algorithm, a prover, a verifier) is written as one class: its fields are the fields
of the recipe, and its methods are what the run calls. This module knows where these classes are, and nothing of what
they do: they lie on higher floors, and are imported by name.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from types import FunctionType
from typing import Annotated, Any, Generic, TypeVar

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from mrt_hpc.recipe.base import Section, misfit

S = TypeVar("S", bound=Section)
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

    def find(self, name: Any) -> type[S] | None:
        """The class of the package that a ``type`` names; None where it names none."""
        where = self.built_in.get(name) if isinstance(name, str) else None
        return None if where is None else imported(where)

    def of_user(self, name: str) -> type[Section]:
        """The class that ``module:Class`` names, or that which stands for ``module:function``.

        Raises:
            PydanticCustomError: there is no such module, or no such section in it.
        """
        try:
            named = imported(name)
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            named_so = "Class" if self.of_functions is None else "Class or module:function"
            what = f"module:{named_so} of an importable module, which may lie beside this file: {error!r}"
            raise misfit("type", what) from error
        is_own = name.partition(":")[0].partition(".")[0] not in sys.stdlib_module_names
        if isinstance(named, FunctionType) and self.of_functions is not None and is_own:
            named = imported(self.of_functions)
        if not (isinstance(named, type) and issubclass(named, Section)):
            raise misfit("type", f"a class of kind {self.kind}: {name} is none")
        return named

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


def imported(where: str) -> Any:
    """What ``module:name`` names.

    Raises:
        ImportError, AttributeError, ValueError: there is no such module, or no such name in it.
    """
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)
