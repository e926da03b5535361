"""Starting the plan's tasks, on Slurm or on this machine, and telling how they stand."""
