"""The random generators of a process: seeded, told as JSON, and put back to where they were."""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

PYTHON_VERSION = 3
"""Of ``random.getstate``."""


def seed(value: int) -> None:
    """Seed every generator of this process, the device's included."""
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


@dataclass(frozen=True)
class Generators:
    """Where all generators of one process stand, as JSON holds it."""

    told: dict[str, Any]

    @staticmethod
    def here() -> Generators:
        """This process's, as they stand."""
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
    def of(told: Any) -> Generators:
        """What ``told`` of an earlier process holds; it is tried on generators that are not in use.

        Raises:
            ValueError: it is not what ``here`` tells.
        """
        generators = Generators(told)
        try:
            random.Random().setstate(generators._python())
            np.random.RandomState().set_state(generators._numpy())
            torch.Generator().set_state(generators._bytes("torch"))
            if told["cuda"] is not None:
                generators._bytes("cuda")
        except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"not the state of random generators: {error!r}") from error
        return generators

    def restore(self) -> None:
        """Put this process's generators there; the device's only where it had one when they were told."""
        random.setstate(self._python())
        np.random.set_state(self._numpy())
        torch.set_rng_state(self._bytes("torch"))
        if self.told["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(self._bytes("cuda"))

    def _python(self) -> tuple[int, tuple[int, ...], float | None]:
        told = self.told["python"]
        return PYTHON_VERSION, tuple(_array(told["words"]).tolist()), told["normal"]

    def _numpy(self) -> tuple[str, np.ndarray, int, int, float]:
        told = self.told["numpy"]
        return "MT19937", _array(told["words"]), told["position"], told["has_normal"], told["normal"]

    def _bytes(self, name: str) -> torch.Tensor:
        return torch.from_numpy(_array(self.told[name], np.uint8).copy())


def _text(array: np.ndarray, kind: type[np.unsignedinteger] = np.uint32) -> str:
    return base64.b64encode(array.astype(np.dtype(kind).newbyteorder("<")).tobytes()).decode()


def _array(text: str, kind: type[np.unsignedinteger] = np.uint32) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), np.dtype(kind).newbyteorder("<")).astype(kind)
