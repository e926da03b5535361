"""Entry module of the vLLM server: ``python -m mrt_hpc.inference.server_main`` loads vLLM, and then takes from its
standard input what to serve. The owner finds that out meanwhile: it verifies the weights and reads the tokenizer.

It ensures that no process of the server outlives the process that started it, even when that process is killed without
a chance to clean up: on a shared node a remaining engine would hold its GPU until a person notices. vLLM starts its
engine and workers with ``spawn``, which imports this module again in each of them under the name ``__mp_main__``; there
the process asks the kernel for a signal when its parent dies. An engine on CPU is forked, and asks for it in
`mrt_hpc.inference.vllm_on_cpu`. The server itself watches its parent instead: the kernel's signal follows the
*thread* that started a process, and an owner may restart its server from a thread that ends.

Nothing of the training stack is imported with this module, so that login nodes can read here how long the path
of a socket may be.
"""

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from mrt_hpc.run.process import die_with_parent, loading

OWNER_VARIABLE = "MRT_HPC_SERVER_OWNER"
"""The variable with the owner's process id; the server ends when this is no longer its parent."""
DIRECTORY_VARIABLE = "MRT_HPC_SERVER_DIRECTORY"
"""The variable with the private directory of the server's sockets."""
LONGEST_SOCKET_PATH = 100
"""Characters; the system takes 107."""
DEEPEST_SOCKET = "/mrt-hpc-12345678/pymp-12345678/listener-12345678"
"""The longest path of a socket, relative to the folder for temporary files."""
LONGEST_SOCKET_FOLDER = LONGEST_SOCKET_PATH - len(DEEPEST_SOCKET)
"""Characters of the folder for temporary files; if it is longer, servers put their sockets into /tmp."""

_LOOK_EVERY_S = 0.5


def folder_variables(folder: Path) -> dict[str, str]:
    """The environment variables with which vLLM's processes on a node keep sockets and temporary files in a private
    folder, with which they are removed.
    """
    return {"VLLM_RPC_BASE_PATH": str(folder), "TMPDIR": str(folder)}


def end_with_owner(owner: int, directory: str, *, group: bool = False) -> None:
    """Watch, in a thread, for the end of ``owner``; then remove the sockets' directory and end this process.

    The process ends by SIGKILL; the kernel then kills its children.

    Args:
        owner: its process id.
        directory: of the sockets.
        group: whether the whole process group, of which this process is the first, ends at once: for children that do
            not end with their parent.
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
    with loading():
        from vllm.entrypoints.launchers.api_server.entry import main as serve
        from vllm.platforms import current_platform

        if current_platform.is_cpu():
            from mrt_hpc.inference.vllm_on_cpu import fork_engines

            fork_engines()
    if order := sys.stdin.readline():
        sys.argv[1:], changed = json.loads(order)
        os.environ.update(changed)
        serve()
    elif owner:  # the owner has ended, or needs no server
        shutil.rmtree(os.environ[DIRECTORY_VARIABLE], ignore_errors=True)


if __name__ == "__mp_main__":
    die_with_parent()
    with loading():
        import vllm.v1.engine.core  # noqa: F401 - an engine and its workers import it next
if __name__ == "__main__":
    main()
