"""One command from a folder of masks to a network that keeps its budget: the stages, what they need, what they give."""
