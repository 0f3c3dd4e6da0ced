"""Annotation files of labelling tools: a thin reader per format, shapes per image, one rasteriser."""
