"""Deployment: from a trained network to files that run on a device, checked against the network."""
