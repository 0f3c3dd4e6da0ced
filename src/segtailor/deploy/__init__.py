"""From a trained network to what runs on a device."""
