"""``python -m hespas.estimator.roofline`` is ``hespas estimate --method roofline``."""

from hespas.cli.documented import estimator

if __name__ == "__main__":
    estimator("roofline")
