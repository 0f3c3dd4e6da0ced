"""The published systems as values: one module per paper with `PAPER` and `SMALL` search recipes, and its training."""
