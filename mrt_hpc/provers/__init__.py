"""Provers: how the prefixes of a trace get their values."""
