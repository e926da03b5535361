"""The method of MRT, pure: episodes, values, progress and advantages.

Source: Qu et al., "Optimizing Test-Time Compute via Meta Reinforcement Fine-Tuning" (ICML 2025, arXiv 2503.07572). Read
in this order: :mod:`episodes` (cut a trace), :mod:`values` (what a prefix is worth), :mod:`progress` (what an episode
brings), then one file an algorithm, :mod:`grpo` and :mod:`mrt_online`. Shapes are written with capitals: T tokens, k
episodes, n rollouts a group, B rollouts a batch. Nothing here samples, grades or trains, and nothing heavier than numpy
is imported.
"""
