"""Measured steps against predicted ones."""
