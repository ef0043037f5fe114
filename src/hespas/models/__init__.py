"""The model zoo: training and inference steps in plain JAX, one small file per family.

Nothing here runs: a model is a function with abstract arguments, which JAX traces on a mesh of
devices that need not exist.
"""
