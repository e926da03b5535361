"""``python -m mrt_hpc`` is the ``mrt-hpc`` command."""

from __future__ import annotations

from mrt_hpc.cli.main import main

if __name__ == "__main__":
    main(prog_name="mrt-hpc")
