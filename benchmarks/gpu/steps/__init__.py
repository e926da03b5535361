"""What the first day on GPUs measures: a module a step, each with a function ``run``."""
