"""Divide a program into regions of computation and communication."""
