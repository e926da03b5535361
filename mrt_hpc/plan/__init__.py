"""From recipe and site to a plan: pure data, made without Slurm, without a GPU and without the training stack."""
