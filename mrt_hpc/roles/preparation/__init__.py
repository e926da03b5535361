"""What the first job checks before anything is sampled."""
