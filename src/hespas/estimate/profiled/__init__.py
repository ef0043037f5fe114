"""Estimators that run the program's regions and take the time."""
