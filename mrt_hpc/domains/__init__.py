"""From an answer's text to its reward: extraction, equivalence, and a pool of processes that survives an answer that
hangs.
"""
