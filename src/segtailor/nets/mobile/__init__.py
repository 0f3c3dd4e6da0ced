"""Converters to the files of runtimes for phones and boards, and sessions that run these files here."""
