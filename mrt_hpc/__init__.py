"""mrt-hpc: Meta Reinforcement Fine-Tuning (MRT) of language models on Slurm clusters.

ARCHITECTURE.md has the map of the rooms and the files to read first; imports go only downwards. :mod:`mrt_hpc.mrt`
holds the method.
"""

__version__ = "0.2.0"
