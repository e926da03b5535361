"""Computes the results of a run: numbers with their uncertainty, figures, and the report."""

import logging

# It says that it keeps its cache elsewhere where a home cannot be written, which no user has to know.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
