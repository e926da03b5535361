"""Starts the tasks of a plan, on Slurm or on this machine, and reports their state."""
