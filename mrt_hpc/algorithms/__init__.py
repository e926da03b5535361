"""Algorithms: what is sampled for an update, and what it is paid for. One module an algorithm."""
