"""The distance of each pixel in metres: inverse Huber loss, the usual errors, a colour map with its scale."""
