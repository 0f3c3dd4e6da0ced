"""Semantic segmentation networks made to measure: your data, your device, your budget in milliseconds."""

__version__ = "0.1.0"
