"""Entry module of the vLLM server: ``python -m mrt_hpc.inference.server_main`` loads vLLM, and then takes from its
standard input what to serve.

No process of the server outlives its owner, even a killed one: an engine would hold its GPU. vLLM's ``spawn`` imports
this module in engine and workers as ``__mp_main__``; these ask the kernel for a signal when their parent dies. The
server watches its parent: that signal follows the *thread* that started a process.

Imports nothing of the training stack: login nodes import it.
"""

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from mrt_hpc.run.process import die_with_parent, pause_collector

OWNER_VARIABLE = "MRT_HPC_SERVER_OWNER"
"""The owner's process id; the server ends when this is no longer its parent."""
DIRECTORY_VARIABLE = "MRT_HPC_SERVER_DIRECTORY"
"""The private directory of the server's sockets."""
LONGEST_SOCKET_PATH = 100
"""Characters; the system takes 107."""
DEEPEST_SOCKET = "/mrt-hpc-12345678/pymp-12345678/listener-12345678"
"""The longest path of a socket below the folder for temporary files."""
LONGEST_SOCKET_FOLDER = LONGEST_SOCKET_PATH - len(DEEPEST_SOCKET)
"""Characters; below a longer folder, servers put their sockets into /tmp."""

_LOOK_EVERY_S = 0.5


def folder_variables(folder: Path) -> dict[str, str]:
    """vLLM's processes on a node keep sockets and temporary files by these variables in a private folder."""
    return {"VLLM_RPC_BASE_PATH": str(folder), "TMPDIR": str(folder)}


def end_with_owner(owner: int, directory: str, *, group: bool = False) -> None:
    """Watch, in a thread, for the end of ``owner``; then remove the sockets' directory and end this process by SIGKILL,
    upon which the kernel kills its children. ``group`` ends its whole process group, for children that do not end with
    their parent.
    """

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(_LOOK_EVERY_S)
        shutil.rmtree(directory, ignore_errors=True)
        if group:
            os.killpg(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="owner-watch", daemon=True).start()


def main() -> None:
    """Serve until a signal or the end of the owner; end at once where the owner needs no server."""
    if owner := os.environ.get(OWNER_VARIABLE):
        end_with_owner(int(owner), os.environ[DIRECTORY_VARIABLE])
    with pause_collector():
        from vllm.entrypoints.launchers.api_server.entry import main as serve
        from vllm.platforms import current_platform

        if current_platform.is_cpu():
            from mrt_hpc.inference.vllm_on_cpu import fork_engines, inspect_models_here

            fork_engines()
            inspect_models_here()
    if order := sys.stdin.readline():
        sys.argv[1:], changed = json.loads(order)
        os.environ.update(changed)
        serve()
    elif owner:  # the owner has ended, or needs no server
        shutil.rmtree(os.environ[DIRECTORY_VARIABLE], ignore_errors=True)


if __name__ == "__mp_main__":
    die_with_parent()
    with pause_collector():
        import vllm.v1.engine.core  # noqa: F401 - an engine and its workers import it next
if __name__ == "__main__":
    main()
