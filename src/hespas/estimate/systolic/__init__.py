"""Estimators that model a systolic array of multipliers."""
