"""Checks, before a run is submitted, that it can start and finish here: the cluster, the site profile, the run
directory, the recipe's inputs and the compute nodes.
"""
