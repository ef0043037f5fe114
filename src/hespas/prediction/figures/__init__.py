"""Figures of a prediction: tables and totals, made once, which reports render."""
