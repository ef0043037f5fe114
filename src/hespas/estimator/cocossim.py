"""``python -m hespas.estimator.cocossim`` is ``hespas estimate --method cocossim``."""

from hespas.cli.main import estimator

if __name__ == "__main__":
    estimator("cocossim")
