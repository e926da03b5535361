"""mrt-hpc: Meta Reinforcement Fine-Tuning (MRT) of language models on Slurm clusters.

The layers, highest first; imports go only downwards: ``cli`` > ``launch`` > ``roles`` > ``inference``, ``training``,
``grading``, ``analysis``, ``world`` > ``plan`` > ``mrt`` > ``run`` > ``recipe``. Start reading at :mod:`mrt_hpc.mrt`,
which holds the method.
"""

__version__ = "0.1.0"
