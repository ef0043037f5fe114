"""Collective algorithms as graphs of transfers: read, verify, generate, write."""
