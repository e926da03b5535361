"""Mathematics with a final answer: how it is cleaned, read and compared with the gold answer."""
