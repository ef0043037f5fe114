"""Predictions against measurements: steps measured here, published steps, and calibration."""
