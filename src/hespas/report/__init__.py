"""Folds over results: text, JSON and the documented files."""
