"""Makes a plan from recipe and site: pure data, without Slurm, a GPU or the training stack."""
