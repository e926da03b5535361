"""The Slurm back end."""
