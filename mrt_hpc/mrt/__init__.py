"""The method of MRT as pure functions: episodes, values, progress and advantages.

Source: Qu et al., "Optimizing Test-Time Compute via Meta Reinforcement Fine-Tuning" (ICML 2025, arXiv 2503.07572). Read
in this order: :mod:`episodes` (cut a trace), :mod:`values` (the value of a prefix), :mod:`progress` (the gain of an
episode), then one file per algorithm, :mod:`grpo` and :mod:`mrt_online`. Shapes are written with capitals: T tokens, k
episodes, n rollouts per group, B rollouts per batch. Nothing here samples, grades or trains, or imports more than
numpy.
"""
