"""The run directory: its layout, its files, and how they are written whole or not at all."""
