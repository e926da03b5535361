"""Evaluations on their own, of any models: what is asked, and the judging of stored samples with other rules."""
