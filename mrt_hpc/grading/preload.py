"""Imported by the fork server alone: has math-verify build its tables once, for every worker forked afterwards."""

from mrt_hpc.grading.equivalence import judge

judge("\\frac{1}{2}", "0.5")
