"""The single checks of the dataset doctor: a census of all samples, and rules that read it."""
