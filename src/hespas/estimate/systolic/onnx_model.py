"""ONNX models of one matrix product."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from hespas.errors import ExtraMissingError, UnsupportedError
from hespas.estimate.systolic.array import Product

Operator: TypeAlias = Literal["MatMul", "Gemm"]

_TYPES = {2: "FLOAT16", 4: "FLOAT", 8: "DOUBLE"}
_OPSET = 13
_IR_VERSION = 8
_MOST_INSIDE_BYTES = 2**28
"""Larger weights stand beside the model: a file of protocol buffers ends at 2 GiB."""


def need_onnx() -> None:
    """Raise `ExtraMissingError` where the package onnx is not installed."""
    if find_spec("onnx") is None:
        raise ExtraMissingError("method 'onnxim'", extra="onnxim")


def write_product_model(
    path: Path, product: Product, *, element_bytes: int, operator: Operator
) -> None:
    """Write a model whose one node multiplies its input, m x k, with weights of zeros.

    MatMul has weights of k x n; Gemm of n x k, transposed, as fully connected layers have them.
    Weights above 256 MiB go to a sparse file beside ``path``, of the same name with ``.data``.
    Raises `UnsupportedError` for elements of a size that the operators don't take.
    """
    onnx = import_module("onnx")
    helper = import_module("onnx.helper")
    if element_bytes not in _TYPES:
        raise UnsupportedError(
            f"ONNX's {operator} takes elements of 2, 4 or 8 bytes, not of {element_bytes}",
            hint="use another method for this program",
        )
    kind = getattr(onnx.TensorProto, _TYPES[element_bytes])
    shape = [product.k, product.n] if operator == "MatMul" else [product.n, product.k]
    weights = onnx.TensorProto(name="weights", data_type=kind, dims=shape)
    size_bytes = product.k * product.n * element_bytes
    if size_bytes <= _MOST_INSIDE_BYTES:
        weights.raw_data = bytes(size_bytes)
    else:
        beside = path.with_suffix(".data")
        with beside.open("wb") as file:
            file.truncate(size_bytes)
        weights.data_location = onnx.TensorProto.EXTERNAL
        weights.external_data.add(key="location", value=beside.name)
    attributes = {} if operator == "MatMul" else {"transB": 1}
    node = helper.make_node(operator, ["input", "weights"], ["output"], "product", **attributes)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("input", kind, [product.m, product.k])],
        [helper.make_tensor_value_info("output", kind, [product.m, product.n])],
        initializer=[weights],
    )
    opset = helper.make_opsetid("", _OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
    path.write_bytes(model.SerializeToString(deterministic=True))
