"""The strict base model of recipes and site profiles, and their checked kinds of numbers and texts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError


@dataclass(frozen=True)
class Because:
    """Why a range ends where it does: the end of the sentence that refuses a number beyond it."""

    reason: str


Count = Annotated[int, Field(ge=1, le=1_000_000), Because("no run ends with more")]
"""Iterations, steps, and problems, rollouts and branches of one."""
NotNegative = Annotated[int, Field(ge=0, le=1_000_000), Because("no run ends with more")]
Items = Annotated[int, Field(ge=1, le=1_000_000_000), Because("no node reads more")]
"""Lines of a data file."""
Seed = Annotated[int, Field(ge=0, le=2**63 - 1), Because("generators take 63 bits")]
Tokens = Annotated[int, Field(ge=1, le=10_000_000), Because("no model holds a longer text")]
Temperature = Annotated[float, Field(ge=0.01, le=10), Because("below it vLLM's numbers overflow, above it is noise")]
SamplingTemperature = Annotated[float, Field(ge=0, le=10), Because("above it is noise")]
"""0 is greedy."""
LearningRate = Annotated[float, Field(ge=1e-12, le=1), Because("below it no weight changes, above it none stays")]
Norm = Annotated[float, Field(ge=1e-6, le=1e6), Because("below it nothing is learnt, above it nothing is clipped")]
Seconds = Annotated[float, Field(ge=0.05, le=604_800), Because("less is over at once, more than a week is no limit")]
Minutes = Annotated[float, Field(ge=0.001, le=525_600), Because("less is over at once, more than a year is no limit")]
WholeMinutes = Annotated[int, Field(ge=1, le=5_256_000), Because("ten years are no limit")]
Gib = Annotated[float, Field(ge=0.001, le=1_000_000), Because("no node has more memory")]
Rate = Annotated[float, Field(ge=1e-6, le=1e12), Because("no machine is faster")]
"""Tokens, or gigabytes, each second."""
Gpus = Annotated[int, Field(ge=0, le=1024), Because("no node has more")]
Cores = Annotated[int, Field(ge=1, le=65_536), Because("no node has more")]
"""Cores, processes or servers of a node."""
Nodes = Annotated[int, Field(ge=1, le=1_000_000), Because("no cluster has more")]
"""Nodes, or ranks on all of them."""
Queued = Annotated[int, Field(ge=1, le=100_000_000), Because("no queue holds more")]
"""Jobs and array tasks in a queue."""
Share = Annotated[float, Field(ge=0, le=1)]
NumberFormat = Literal["float32", "bfloat16", "float16"]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
OPTION = r"^[a-z][a-z0-9-]*$"
PARTITION = r"^[^\s,]+(,[^\s,]+)*$"
GPU_TYPE = r"^[A-Za-z0-9][\w.+-]*$"
PATTERNS = {
    NAME: "letters, digits, dots, underscores and hyphens: 64 at most, the first a letter or a digit",
    VARIABLE: "letters, digits and underscores, the first no digit",
    OPTION: "small letters, digits and hyphens, the first a letter: an option of sbatch without its two hyphens",
    PARTITION: "characters without a line break or a blank, with commas between several names",
    GPU_TYPE: "letters, digits, dots, underscores, hyphens and pluses, as sinfo shows a type of GPU, without its count",
}
Name = Annotated[str, Field(pattern=NAME)]
"""Parts of paths and job names, hence no spaces and no slashes."""


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise PydanticCustomError(
            "control_character", "one line of text, without a line break or another control character"
        )
    return text


Line = Annotated[str, AfterValidator(_one_line)]
"""A line break would put the rest of the text on its own line of a job script."""


def _path(text: str) -> str:
    if not text.strip() or "\0" in text or not text.strip("/. "):
        raise PydanticCustomError("no_path", "the path of a file or folder, which this text cannot be")
    return text


PathText = Annotated[str, AfterValidator(_path)]
"""Refuses empty text and the root of the filesystem."""


def _visible(text: str) -> str:
    if text and not text.strip():
        raise PydanticCustomError("blank", "a text that is not of white space alone, which no paragraph begins with")
    return text


Visible = Annotated[str, AfterValidator(_visible)]
"""A text that a paragraph can begin with."""


def misfit(field: str, reason: str, fits: str | None = None) -> PydanticCustomError:
    """The refusal of a combination: ``field`` (with dots) is to be changed first, and ``fits`` is a value, as YAML,
    that removes the refusal.
    """
    return PydanticCustomError("misfit", "{reason}", {"field": field, "reason": reason, "fits": fits})


def refuse_all(*checks: Callable[[], None]) -> None:
    """Make several checks, and raise their ``misfit``s as one ValidationError."""
    refused: dict[str, PydanticCustomError] = {}
    for check in checks:
        try:
            check()
        except PydanticCustomError as error:
            refused.setdefault((error.context or {}).get("field", str(error)), error)
    if refused:
        raise ValidationError.from_exception_data(
            "fields", [InitErrorDetails(type=e, input=None) for e in refused.values()]
        )


FormerValues = Mapping[str, Mapping[bool | str, Mapping[str, Any]]]
"""A field of an earlier version, and for each of its values the fields that say the same now."""


class Section(BaseModel):
    """A part of a recipe: immutable, with no unknown fields, each field documented by the text under it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    former_fields: ClassVar[Mapping[str, Any]] = {}
    """Fields of earlier versions, with the value that always holds now: a run whose lock has it goes on."""

    former_values: ClassVar[FormerValues] = {}
    """Those of earlier versions: a run whose lock has them goes on."""


K = TypeVar("K")


def require_kind(section: Section, kind: type[K]) -> K:
    """Refuses another class with a TypeError."""
    if not isinstance(section, kind):
        raise TypeError(f"{type(section).__name__} is not a subclass of {kind.__module__}.{kind.__name__}")
    return section
