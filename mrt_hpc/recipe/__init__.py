"""The files that a user writes, recipe and site profile, and the errors about them."""
