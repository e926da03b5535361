"""Generation: a vLLM server of our own, the client that keeps it full, and the sampling of rollouts and branches
through it."""
