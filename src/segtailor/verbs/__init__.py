"""One module per verb of the command line: its flags and the function behind it, which is also the Python API."""
