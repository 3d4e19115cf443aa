"""How exact ONNX Runtime's DFT is, which computes the Fourier transform of FNet: PYTHON reproduce_onnx_runtime.py

PYTHON has numpy, onnx and onnxruntime. FNet transforms the hidden states over their 768 numbers: not a power of two.
"""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

axis = helper.make_tensor("axis", TensorProto.INT64, [], [1])
given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, 1])
found = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
graph = helper.make_graph([helper.make_node("DFT", ["x", "", "axis"], ["y"])], "dft", [given], [found], [axis])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__, "numpy", np.__version__)
draw = np.random.RandomState(0)
for length in (256, 512, 768, 1000, 1024):
    numbers = draw.randn(1, length, 1).astype(np.float32)
    exact = np.fft.fft(numbers[..., 0].astype(np.float64))
    parts = session.run(None, {"x": numbers})[0]
    errors = {"ONNX Runtime": parts[..., 0] + 1j * parts[..., 1], "NumPy": np.fft.fft(numbers[..., 0])}
    told = (f"{name} {np.abs(values - exact).max() / np.abs(exact).max():.0e}" for name, values in errors.items())
    print(f"length {length}, error in relation to the largest number: {', '.join(told)}")
