"""``python -m hespas.estimator.cocossim`` is ``hespas estimate --method cocossim``."""

from hespas.cli.documented import estimator

if __name__ == "__main__":
    estimator("cocossim")
