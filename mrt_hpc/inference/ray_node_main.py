"""Entry module of a Ray node; ``python -m mrt_hpc.inference.ray_node_main`` takes the arguments of ``ray start``.

No process of the node outlives the task that started it, even when the task is killed: this process watches the task
and kills itself, the kernel ends Ray's own processes with it (``ray start --block`` asks for that), and Ray's workers
end with these.
"""

from __future__ import annotations

import os

from mrt_hpc.inference.server_main import DIRECTORY_VARIABLE, OWNER_VARIABLE, end_with_owner


def main() -> None:
    """Be a node until a signal, or the end of the owner."""
    end_with_owner(int(os.environ[OWNER_VARIABLE]), os.environ[DIRECTORY_VARIABLE])
    from ray.scripts import scripts

    # Else the first node also listens for clients of other programs, at a fixed port.
    scripts.get_ray_client_dependency_error = lambda: "no clients of other programs are wanted"
    scripts.start()


if __name__ == "__main__":
    main()
