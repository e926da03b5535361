"""``python -m mrt_hpc`` is the ``mrt-hpc`` command."""

from mrt_hpc.cli import start

if __name__ == "__main__":
    start()
