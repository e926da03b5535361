"""What the trainer role is made of: the data of an iteration, the artifacts that it leaves, and its metrics."""
