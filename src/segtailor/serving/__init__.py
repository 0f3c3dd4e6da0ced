"""The local demo page: a small web application around one trained network."""
