"""Fetches from the Hugging Face hub, on a node with network access."""
