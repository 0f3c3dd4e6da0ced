"""Reports for people: pages, plots and drawings, from run directories and plain data. Imports no torch."""
