"""``python -m hespas.estimator.iree`` is ``hespas estimate --method iree``."""

from hespas.cli.main import estimator

if __name__ == "__main__":
    estimator("iree")
