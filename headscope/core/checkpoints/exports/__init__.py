"""Exported models: ONNX graphs and GGUF files, whose heads are read and not traced."""
