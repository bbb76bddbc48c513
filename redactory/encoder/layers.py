"""Read the weights of single layers of an encoder folder, for those who train on top of the layers below."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PARTS = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
"""The linear layers of a layer, by their names in BERT and in the order of ``layers.onnx``."""
NORMS = ("attention.output.LayerNorm", "output.LayerNorm")


def read_layer_weights(folder: Path, layer: int) -> dict[str, NDArray[np.float32]]:
    """Read ``weight`` [outputs, inputs] and ``bias`` of each of ``PARTS`` and ``NORMS``, by PART.weight and PART.bias.

    ``layer`` counts from 0. The weights are those that ``layers.onnx`` computes with, converted from integers.
    """
    import onnx
    from onnx.numpy_helper import to_array

    tensors = {tensor.name: tensor for tensor in onnx.load(folder / "layers.onnx").graph.initializer}
    matrices = [name.removesuffix("_quantized") for name in tensors if name.startswith("onnx::MatMul")]
    matrices = list(dict.fromkeys(name for name in matrices if f"{name}_quantized" in tensors))
    prefix, weights = f"model.encoder.layer.{layer}.", dict[str, NDArray[np.float32]]()
    for part, matrix in zip(PARTS, matrices[len(PARTS) * layer :], strict=False):
        integers, zero, scale = (
            to_array(tensors[f"{matrix}_{kind}"]).astype(np.float32) for kind in ("quantized", "zero_point", "scale")
        )
        weights[f"{part}.weight"] = np.ascontiguousarray(((integers - zero) * scale).T)
        weights[f"{part}.bias"] = to_array(tensors[f"{prefix}{part}.bias"])
    for norm in NORMS:
        weights |= {f"{norm}.{name}": to_array(tensors[f"{prefix}{norm}.{name}"]) for name in ("weight", "bias")}
    return weights
