"""DeepSpeed, imported for the hardware that is here. Every other module takes it from this one.

DeepSpeed looks for its accelerator when it is imported, and builds a shared-memory operation with a C++ compiler
(half a minute) when it joins a process group on CPU. That operation serves inference only: it is declared
unavailable, so no compiler is needed.
"""

from __future__ import annotations

import logging
import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import deepspeed.ops

deepspeed.ops.__compatible_ops__ = {}  # read at one place only, before that operation is built
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)


def device() -> torch.device:
    """This process's device."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def backend() -> str:
    """The communication library for that device."""
    return "nccl" if torch.cuda.is_available() else "gloo"


def synchronize() -> None:
    """Wait for the device, so that a clock read next tells the truth."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


__all__ = ["backend", "deepspeed", "device", "synchronize"]
