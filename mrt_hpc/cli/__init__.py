"""The command line: thin commands over ``launch``; see ``mrt-hpc --help``."""
