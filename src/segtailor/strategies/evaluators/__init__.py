"""Who judges an architecture: by training it briefly, or by reading weights that are shared."""
