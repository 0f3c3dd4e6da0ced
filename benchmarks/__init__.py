"""Measurements and paper studies. Run them from the folder of the repository: `python -m benchmarks.NAME --help`."""
