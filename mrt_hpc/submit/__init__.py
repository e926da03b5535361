"""What leads from a recipe to queued jobs: the run directory, what may change in it, and the submission itself."""
