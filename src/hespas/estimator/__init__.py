"""The documented estimators, run alone: ``python -m hespas.estimator.NAME``.

Each module here is ``hespas estimate --method NAME`` and prints what the estimator's time would
have been without reuse. The methods themselves are in `hespas.price`. Nothing imports this
folder.
"""
