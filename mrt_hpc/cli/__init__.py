"""The command line: thin commands over the rooms below; see ``mrt-hpc --help``."""

import signal


def start() -> None:
    """While the program loads, Ctrl-C ends it without a traceback."""
    taken = signal.getsignal(signal.SIGINT)
    if taken is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mrt_hpc.cli.main import main

    signal.signal(signal.SIGINT, taken)
    main(prog_name="mrt-hpc")
