"""ONNX graphs and the head that they hold."""
