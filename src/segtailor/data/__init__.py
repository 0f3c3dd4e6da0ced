"""Datasets, their checks, and the way from files to batches on a device."""
