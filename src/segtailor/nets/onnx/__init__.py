"""Read, write, quantise and run ONNX graphs, also those from other sources."""
