"""Semantic segmentation, one class per pixel: labels, losses, metrics, pictures, labels computed in exported files."""
