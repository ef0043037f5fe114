"""Programs from where users have them: the model zoo, JAX functions, compiler dumps, PyTorch.

Everything becomes StableHLO, sharded as the function says, or partitioned for one device.
"""
