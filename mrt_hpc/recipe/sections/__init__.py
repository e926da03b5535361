"""The sections of a recipe, one module each, with the name of the section."""
