"""``python -m hespas.estimator.xla`` is ``hespas estimate --method xla``."""

from hespas.cli.main import estimator

if __name__ == "__main__":
    estimator("xla")
