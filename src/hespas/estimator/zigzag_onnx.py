"""``python -m hespas.estimator.zigzag_onnx`` is ``hespas estimate --method zigzag_onnx``."""

from hespas.cli.documented import estimator

if __name__ == "__main__":
    estimator("zigzag_onnx")
