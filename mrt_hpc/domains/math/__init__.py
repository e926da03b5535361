"""Mathematics with a final answer: where the answer stands, and whether it equals the gold answer."""
