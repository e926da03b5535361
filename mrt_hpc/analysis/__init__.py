"""Computes the results of a run: numbers with their uncertainty, figures, and the report."""
