"""``python -m hespas.estimator.onnxim`` is ``hespas estimate --method onnxim``."""

from hespas.cli.documented import estimator

if __name__ == "__main__":
    estimator("onnxim")
