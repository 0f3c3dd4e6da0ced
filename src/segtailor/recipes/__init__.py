"""Recipes: complete, plain descriptions of work, and the one place where names become objects and jobs."""
