"""Families of language models: what each is put together from, and its sizes.

A module lists the models of a family, with the counts of parameters that were published for them.
Importing them does not import JAX.
"""
