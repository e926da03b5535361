"""Entry module of a Ray node; ``python -m mrt_hpc.inference.ray_node_main`` takes the arguments of ``ray start``.

No process of the node outlives the task, even a killed one: this process watches the task, and then kills its process
group, which holds the node. Ray's own ways of ending leave some processes for a minute.
"""

import os
import sys

from mrt_hpc.inference.server_main import DIRECTORY_VARIABLE, OWNER_VARIABLE, end_with_owner
from mrt_hpc.run.network import LOOPBACK


def main() -> None:
    """Be a node until a signal, or the end of the owner."""
    end_with_owner(int(os.environ[OWNER_VARIABLE]), os.environ[DIRECTORY_VARIABLE], group=True)
    from ray._private import services
    from ray.scripts import scripts

    # Else the first node also listens for clients of other programs, at a fixed port.
    scripts.get_ray_client_dependency_error = lambda: "no clients of other programs are wanted"
    if f"--node-ip-address={LOOPBACK}" in sys.argv:
        # Else Ray takes the address of a network card, and listens at all addresses of the machine.
        services.get_node_ip_address = lambda address=None: LOOPBACK  # noqa: ARG005
    scripts.start()


if __name__ == "__main__":
    main()
