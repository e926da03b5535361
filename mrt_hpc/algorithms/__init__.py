"""The algorithms, one module each: the rollouts sampled for an update, and the advantages or samples it learns from."""
