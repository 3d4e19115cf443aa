"""ONNX files: their graph and its head."""
