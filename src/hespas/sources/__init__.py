"""Programs of models, JAX functions, XLA dumps and PyTorch.

`source.find_source` resolves a text to its source, and `workload.read_workload` gets the program,
which is exported in a process of its own unless it is a file. Everything becomes
`exported.Exported`: StableHLO, sharded as the function says; `zoo` settles the settings that a
model of the zoo leaves open; `exported.partitioned` makes it the program of one device. `function`
exports models of the zoo, JAX functions by name or by value, and artifacts of ``jax.export``;
`dump` a directory of XLA's dumps; `torch_module` a PyTorch module, `maxtext` steps of MaxText, by
an interpreter that has it. `torch_step` records steps of PyTorch programs.
"""
