"""The command line: thin commands over the rooms below; see ``mrt-hpc --help``."""
