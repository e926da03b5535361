"""Container images: what they are built from, how they are built and checked."""
