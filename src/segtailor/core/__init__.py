"""Plain data and protocols. Nothing here imports torch."""
