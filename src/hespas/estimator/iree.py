"""``python -m hespas.estimator.iree`` is ``hespas estimate --method iree``."""

from hespas.cli.documented import estimator

if __name__ == "__main__":
    estimator("iree")
