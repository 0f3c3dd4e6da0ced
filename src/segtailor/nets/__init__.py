"""Networks: the interpreter for plans, bundles, weights from other sources, inference, teachers and ONNX graphs."""
