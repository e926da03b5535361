"""Models of the Hugging Face hub in recipes: ``hub:OWNER/NAME@REVISION`` is the directory of one commit in the hub's
cache on this machine.

Nothing here uses the network or the hub's client. ``mrt-hpc model fetch`` fills the cache; other programs that use the
hub's client fill the same one. The folder of a model, ``models--OWNER--NAME``, has the names of revisions in ``refs/``
and the files of a commit in ``snapshots/COMMIT/``.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.model_files import INDEX

PREFIX = "hub:"
MAIN = "main"
"""The revision that is meant where none is named."""
MODEL_FIELDS = (("model", "path"), ("prover", "model"))
"""Where a recipe names models."""
_NAME = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>\w[\w./-]*))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"models--(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)", re.ASCII)


@dataclass(frozen=True)
class HubModel:
    """A model of the hub, and the revision that is asked for."""

    repository: str
    """OWNER/NAME."""
    revision: str = MAIN
    """Branch, tag or commit."""

    @classmethod
    def of(cls, text: str, *, where: object = None) -> Self:
        """Read ``OWNER/NAME[@REVISION]``, with or without ``hub:`` before it.

        Args:
            text: the name.
            where: the place of the name, for the error.

        Raises:
            UserError: it is no such name.
        """
        match = _NAME.fullmatch(text.removeprefix(PREFIX))
        parts = text.split("/")
        if match is None or ".." in parts or "--" in match["repository"]:
            raise UserError(
                "not the name of a model of the hub",
                value=text,
                where=where,
                expected="OWNER/NAME or OWNER/NAME@REVISION; in a recipe hub:OWNER/NAME@REVISION",
                advice="mrt-hpc model fetch deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
            )
        return cls(match["repository"], match["revision"] or MAIN)

    @property
    def name(self) -> str:
        """NAME, without its owner."""
        return self.repository.partition("/")[2]

    @property
    def text(self) -> str:
        """OWNER/NAME@REVISION; OWNER/NAME for the main branch."""
        return self.repository if self.revision == MAIN else f"{self.repository}@{self.revision}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which names the same files forever."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def command(self) -> str:
        """The command that fetches it."""
        return f"mrt-hpc model fetch {self.text}"


@dataclass(frozen=True)
class CachedModel:
    """The folder of a model in the hub's cache, whether it exists or not."""

    model: HubModel
    cache: Path

    @property
    def folder(self) -> Path:
        """The folder of all commits of the model."""
        return self.cache / f"models--{self.model.repository.replace('/', '--')}"

    @property
    def commit(self) -> str | None:
        """The commit of the revision, as it was when the model was fetched; None where that is not known."""
        if self.model.is_pinned:
            return self.model.revision
        try:
            commit = self.ref.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return commit if _COMMIT.fullmatch(commit) else None

    @property
    def ref(self) -> Path:
        """The file that holds the commit of the revision."""
        return self.folder / "refs" / self.model.revision

    def snapshot(self, commit: str) -> Path:
        """The model directory of one commit."""
        return self.folder / "snapshots" / commit

    def fault(self) -> str | None:
        """Why the model cannot be used from the cache, in words; None where it can."""
        commit = self.commit
        if commit is None or not self.snapshot(commit).is_dir():
            return f"{self.model.text} is not in the hub's cache {self.cache}"
        if missing := self.missing(commit):
            return f"{self.model.text} is not complete in the hub's cache {self.cache}: it lacks {', '.join(missing)}"
        return None

    def missing(self, commit: str) -> list[str]:
        """The files that are not there, of those that every model has and those that its index of weights names;
        `submit` checks the files of a model one by one.
        """
        snapshot = self.snapshot(commit)
        try:
            index = json.loads((snapshot / INDEX).read_bytes())
            weights = sorted(set(index["weight_map"].values()))
        except FileNotFoundError:
            weights = ["*.safetensors"]
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            weights = [INDEX]
        return [name for name in ("config.json", *weights) if not any(map(Path.is_file, snapshot.glob(name)))]


def cache_directory() -> Path:
    """The hub's cache on this machine, by the variables that the hub's client reads: HF_HUB_CACHE, else HF_HOME."""
    home = os.environ.get("HF_HOME") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    )
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or str(Path(home) / "hub")
    return Path(os.path.expandvars(named)).expanduser().absolute()


def is_hub_name(text: str) -> bool:
    """Whether a text names a model of the hub, and no path."""
    return text.startswith(PREFIX)


def found_in_cache(text: str, *, where: object = None) -> str:
    """The model directory in the cache for ``hub:OWNER/NAME@REVISION``; the text itself where it is not there, and for
    paths.

    Args:
        text: what a recipe or a command names.
        where: its place, for an error.

    Raises:
        UserError: it begins with ``hub:`` and is no name of a model.
    """
    if not is_hub_name(text):
        return text
    cached = CachedModel(HubModel.of(text, where=where), cache_directory())
    commit = cached.commit
    return text if cached.fault() or commit is None else str(cached.snapshot(commit))


def with_cached_models(data: dict[str, Any]) -> dict[str, Any]:
    """A recipe as it was read, with the model directory in place of each name of the hub that is in the cache.

    Raises:
        UserError: a name begins with ``hub:`` and is no name of a model.
    """
    for section, field in MODEL_FIELDS:
        inner = data.get(section)
        if isinstance(inner, dict) and isinstance(text := inner.get(field), str):
            cached = found_in_cache(text, where=f"{section}.{field}")
            data = {**data, section: {**inner, field: cached}}
    return data


def not_fetched(text: str) -> str | None:
    """What is missing of a model that a recipe names by ``hub:`` and that the cache does not hold, with the command to
    type; None for a path.
    """
    error = refusal(text, "")
    return None if error is None else f"{error.what}; next, on a node with network access: {error.advice}"


def refuse_unfetched(text: str, field: str) -> None:
    """Refuse a model that a recipe names by ``hub:`` and that the cache does not hold.

    Raises:
        UserError: with the command that fetches it.
    """
    if (error := refusal(text, field)) is not None:
        raise error


def refusal(text: str, field: str) -> UserError | None:
    """The error for a model that the cache does not hold; None for a path.

    Args:
        text: the model as the recipe names it, after those of the cache were replaced by their directories.
        field: the recipe's field.
    """
    if not is_hub_name(text):
        return None
    model = HubModel.of(text, where=field)
    fault = CachedModel(model, cache_directory()).fault()
    return UserError(
        fault or f"{model.text} was fetched in the meantime",
        value=text,
        where=field or None,
        expected="a model that was fetched; HF_HUB_CACHE and HF_HOME name the cache",
        advice=model.command if fault else "the same command again",
    )


def hub_model_of(path: str) -> HubModel | None:
    """The model and the commit of a directory of the hub's cache, or of a name of the hub; None for other paths."""
    if is_hub_name(path):
        return HubModel.of(path)
    parts = Path(path).parts
    if len(parts) < 3 or parts[-2] != "snapshots" or not _COMMIT.fullmatch(parts[-1]):
        return None
    match = _SNAPSHOT.fullmatch(parts[-3])
    return None if match is None else HubModel(f"{match['owner']}/{match['name']}", parts[-1])


def cache_of(path: Path) -> Path | None:
    """The hub's cache that a model directory belongs to: its files are links into other folders of the cache."""
    return None if hub_model_of(str(path)) is None or is_hub_name(str(path)) else path.parents[2]


def is_same_model(before: str, now: str) -> bool:
    """Whether two values of a field name the same model of the hub: another place of the cache changes no result, and
    neither does a cache that no longer holds the model.
    """
    first, second = hub_model_of(before), hub_model_of(now)
    if first is None or second is None or first.repository != second.repository:
        return False
    return first.revision == second.revision or second.revision == MAIN
