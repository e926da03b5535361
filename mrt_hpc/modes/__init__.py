"""Ways of evaluating: how the traces of an evaluation are sampled."""
