"""``python -m hespas.estimator.roofline`` is ``hespas estimate --method roofline``."""

from hespas.cli.main import estimator

if __name__ == "__main__":
    estimator("roofline")
