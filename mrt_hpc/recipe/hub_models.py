"""Models of the Hugging Face hub in recipes: ``hub:OWNER/NAME@REVISION`` is the directory of one commit in the hub's
cache on this machine.

Nothing here uses the network or the hub's client; ``mrt-hpc model fetch`` fills the cache, as the hub's client does. A
model's folder, ``models--OWNER--NAME``, names revisions in ``refs/`` and has the files of a commit in
``snapshots/COMMIT/``.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.model_files import INDEX
from mrt_hpc.recipe.ownership import file_bytes

PREFIX = "hub:"
MAIN = "main"
MODEL_FIELDS = (("model", "path"), ("prover", "model"))
_NAME = re.compile(r"(?P<repository>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>\w[\w./-]*))?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"models--(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)", re.ASCII)


@dataclass(frozen=True)
class HubModel:
    """A model of the hub at a revision."""

    repository: str
    """OWNER/NAME."""
    revision: str = MAIN
    """Branch, tag or commit."""

    @classmethod
    def of(cls, text: str, *, where: object = None) -> Self:
        """Read ``[hub:]OWNER/NAME[@REVISION]``; errors name ``where``."""
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
        return self.repository if self.revision == MAIN else f"{self.repository}@{self.revision}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which always names the same files."""
        return COMMIT.fullmatch(self.revision) is not None

    @property
    def command(self) -> str:
        return Advice("mrt-hpc model fetch {text}", text=self.text)


@dataclass(frozen=True)
class CachedModel:
    model: HubModel
    cache: Path

    @property
    def folder(self) -> Path:
        return self.cache / f"models--{self.model.repository.replace('/', '--')}"

    @property
    def commit(self) -> str | None:
        """The revision's commit when the model was fetched."""
        if self.model.is_pinned:
            return self.model.revision
        try:
            commit = file_bytes(self.ref).decode().strip()
        except (OSError, ValueError):
            return None
        return commit if COMMIT.fullmatch(commit) else None

    @property
    def ref(self) -> Path:
        return self.folder / "refs" / self.model.revision

    def snapshot(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def fault(self) -> str | None:
        """Why the cached model cannot be used."""
        commit = self.commit
        if commit is None or not self.snapshot(commit).is_dir():
            return f"{self.model.text} is not in the hub's cache {self.cache}"
        if missing := self.missing_files(commit):
            return f"{self.model.text} is not complete in the hub's cache {self.cache}: it lacks {', '.join(missing)}"
        return None

    def missing_files(self, commit: str) -> list[str]:
        """The missing ones of the files that every model has and its index of weights names; `submit`
        checks each file.
        """
        snapshot = self.snapshot(commit)
        try:
            index = json.loads(file_bytes(snapshot / INDEX))
            weights = sorted(set(index["weight_map"].values()))
        except FileNotFoundError:
            weights = ["*.safetensors"]
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            weights = [INDEX]
        return [name for name in ("config.json", *weights) if not any(map(Path.is_file, snapshot.glob(name)))]


def cache_directory() -> Path:
    """The hub's cache by the variables of its client: HF_HUB_CACHE, else HF_HOME."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = os.environ.get("HF_HOME") or str(caches / "huggingface")
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or str(Path(home) / "hub")
    return Path(os.path.expandvars(named)).expanduser().absolute()


def is_hub_name(text: str) -> bool:
    return text.startswith(PREFIX)


def cached_directory(text: str, *, where: object = None) -> str:
    """The cached directory of ``hub:OWNER/NAME@REVISION``; the text itself where it is not there, and for paths."""
    if not is_hub_name(text):
        return text
    cached = CachedModel(HubModel.of(text, where=where), cache_directory())
    commit = cached.commit
    return text if cached.fault() or commit is None else str(cached.snapshot(commit))


def use_cached_models(data: dict[str, Any]) -> dict[str, Any]:
    """The recipe with the directory in place of each cached name."""
    for section, field in MODEL_FIELDS:
        inner = data.get(section)
        if isinstance(inner, dict) and isinstance(text := inner.get(field), str):
            cached = cached_directory(text, where=f"{section}.{field}")
            data = {**data, section: {**inner, field: cached}}
    return data


def not_fetched(text: str) -> str | None:
    """What the cache lacks of a model, with the command to type; None for a path."""
    error = refusal(text, "")
    return None if error is None else f"{error.what}; next, on a node with network access: {error.advice}"


def refuse_unfetched(text: str, field: str) -> None:
    """Refuse a model that the cache lacks."""
    if (error := refusal(text, field)) is not None:
        raise error


def refusal(text: str, field: str) -> UserError | None:
    """None for a path. ``text`` has passed :func:`cached_directory`."""
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
    """The model of a directory of the hub's cache, or of a name of the hub; None for other paths."""
    if is_hub_name(path):
        return HubModel.of(path)
    parts = Path(path).parts
    if len(parts) < 3 or parts[-2] != "snapshots" or not COMMIT.fullmatch(parts[-1]):
        return None
    match = _SNAPSHOT.fullmatch(parts[-3])
    return None if match is None else HubModel(f"{match['owner']}/{match['name']}", parts[-1])


def cache_of(path: Path) -> Path | None:
    """A model's files link to other folders of its cache."""
    return None if hub_model_of(str(path)) is None or is_hub_name(str(path)) else path.parents[2]


def is_same_model(before: str, now: str) -> bool:
    """Whether two values name the same model of the hub, in whatever cache."""
    first, second = hub_model_of(before), hub_model_of(now)
    if first is None or second is None or first.repository != second.repository:
        return False
    return first.revision == second.revision or second.revision == MAIN
