"""Generation: a vLLM server process, the client that keeps it busy, and the sampling of rollouts and branches through
it.
"""
