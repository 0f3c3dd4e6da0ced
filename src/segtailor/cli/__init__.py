"""The command line: one file per verb. It parses and prints; the work is done by `segtailor.api`."""
