"""``python -m hespas.estimator.xla`` is ``hespas estimate --method xla``."""

from hespas.cli.documented import estimator

if __name__ == "__main__":
    estimator("xla")
