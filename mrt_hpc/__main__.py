"""``python -m mrt_hpc`` is the ``mrt-hpc`` command."""

from mrt_hpc.cli.main import main

if __name__ == "__main__":
    main(prog_name="mrt-hpc")
