"""What the user writes: the recipe, the site profile, and the errors that tell what is wrong with them."""
