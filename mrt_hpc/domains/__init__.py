"""From an answer's text to its reward: extraction, equivalence, and a pool of processes that outlives what hangs."""
