"""A site profile as YAML, with the reason beside each value."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Entry:
    """One value of the profile."""

    field: str
    """The path of the field, as in ``partitions.gpu``."""
    value: Any
    reason: str
    """Where the value is from; for a value that is left at its default, why."""


def profile_text(proposed: Sequence[Entry], head: Sequence[str]) -> str:
    """The profile as YAML, with the reason beside each value.

    Args:
        proposed: all values.
        head: comment lines at the top, without their ``#``.
    """
    tree = CommentedMap()
    for entry in proposed:
        *parents, key = entry.field.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, CommentedMap())
        place[key] = _flow(entry.value)
        if entry.reason:
            place.yaml_add_eol_comment(entry.reason, key, column=0)
    yaml = YAML()
    yaml.width = 10_000  # a value stays on one line with its reason
    yaml.representer.add_representer(type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null"))
    stream = StringIO()
    yaml.dump(tree, stream)
    return "".join(f"# {line}\n" for line in head) + stream.getvalue()


def _flow(value: Any) -> Any:
    """A list or a mapping on one line."""
    if isinstance(value, list):
        whole: Any = CommentedSeq(value)
    elif isinstance(value, dict):
        whole = CommentedMap(value)
    else:
        return value
    whole.fa.set_flow_style()
    return whole
