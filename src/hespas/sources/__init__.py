"""Programs from where users have them: the model zoo, JAX functions, XLA dumps, PyTorch.

`source.find_source` says what a text names, and `workload.read_workload` gets its program, exported
in a process of its own where it is no file. Everything becomes `exported.Exported`: StableHLO,
sharded as the function says; `zoo` settles what a model of the zoo leaves open;
`exported.partitioned` makes it the program of one device. `function` exports models of the zoo, JAX
functions by name or by value, and what ``jax.export`` wrote; `dump` a directory of XLA's dumps;
`torch_module` a PyTorch module, `maxtext` steps of MaxText, by an interpreter that has it.
`torch_step` records steps of PyTorch programs.
"""
