"""The folder of the sockets of a server or of a Ray node: how long its path may be, and how processes learn it.
Without imports of the training stack, so that login nodes can check it.
"""

from __future__ import annotations

from pathlib import Path

LONGEST_SOCKET_PATH = 100
"""Characters; the system takes 107."""
DEEPEST_SOCKET = "/mrt-hpc-12345678/pymp-12345678/listener-12345678"
"""The longest path of a socket, relative to the folder for temporary files."""
LONGEST_SOCKET_FOLDER = LONGEST_SOCKET_PATH - len(DEEPEST_SOCKET)
"""Characters of the folder for temporary files; if it is longer, servers put their sockets into /tmp."""


def folder_variables(folder: Path) -> dict[str, str]:
    """The environment variables with which vLLM's processes on a node keep sockets and temporary files in a private
    folder, with which they are removed.
    """
    return {"VLLM_RPC_BASE_PATH": str(folder), "TMPDIR": str(folder)}
