"""The random generators of a process: this module seeds them, captures their state as JSON, and restores it."""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

PYTHON_VERSION = 3
"""The version of the state that ``random.getstate`` returns."""


def seed(value: int) -> None:
    """Seed every generator of this process, the device's included."""
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


@dataclass(frozen=True)
class Generators:
    """The state of all random generators of one process, in a form that JSON can store."""

    state: dict[str, Any]

    @staticmethod
    def capture() -> Generators:
        """Return the current state of this process's generators."""
        version, words, normal = random.getstate()
        kind, keys, position, has_normal, cached = np.random.get_state(legacy=True)
        assert version == PYTHON_VERSION
        assert kind == "MT19937"
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
        return Generators(
            {
                "python": {"words": _text(np.array(words)), "normal": normal},
                "numpy": {
                    "words": _text(np.asarray(keys)),
                    "position": int(position),
                    "has_normal": int(has_normal),
                    "normal": float(cached),
                },
                "torch": _text(torch.get_rng_state().numpy(), np.uint8),
                "cuda": None if cuda is None else _text(cuda.numpy(), np.uint8),
            }
        )

    @staticmethod
    def from_json(state: Any) -> Generators:
        """Read the state that an earlier process captured, and test it on generators that are not in use.

        Raises:
            ValueError: the data is not a state that ``capture`` returns.
        """
        generators = Generators(state)
        try:
            random.Random().setstate(generators._python())
            np.random.RandomState().set_state(generators._numpy())
            torch.Generator().set_state(generators._bytes("torch"))
            if state["cuda"] is not None:
                generators._bytes("cuda")
        except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"not the state of random generators: {error!r}") from error
        return generators

    def restore(self) -> None:
        """Restore this process's generators; the device's only if the state has one and this process has a device."""
        random.setstate(self._python())
        np.random.set_state(self._numpy())
        torch.set_rng_state(self._bytes("torch"))
        if self.state["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(self._bytes("cuda"))

    def _python(self) -> tuple[int, tuple[int, ...], float | None]:
        state = self.state["python"]
        return PYTHON_VERSION, tuple(_array(state["words"]).tolist()), state["normal"]

    def _numpy(self) -> tuple[str, np.ndarray, int, int, float]:
        state = self.state["numpy"]
        return "MT19937", _array(state["words"]), state["position"], state["has_normal"], state["normal"]

    def _bytes(self, name: str) -> torch.Tensor:
        return torch.from_numpy(_array(self.state[name], np.uint8).copy())


def _text(array: np.ndarray, kind: type[np.unsignedinteger] = np.uint32) -> str:
    return base64.b64encode(array.astype(np.dtype(kind).newbyteorder("<")).tobytes()).decode()


def _array(text: str, kind: type[np.unsignedinteger] = np.uint32) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), np.dtype(kind).newbyteorder("<")).astype(kind)
