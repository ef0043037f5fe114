"""The intermediate representation that all stages read: data only.

`program` has the values, operations, blocks, functions and the `Program` that holds them, `uses`
who makes and who reads a value, `attrs`
and `types` what operations and values carry, `groups` the devices of a collective, `device_order`
which device runs which partition, `scopes` the framework's name stacks, `kernels` a compiler's
kernels and `mosaic` those that authors write for TPUs. `devices` settles how many devices a program
runs on, `targets` names custom calls that more than one part knows, `rewrite` copies operations
and opens calls, `text` prints MLIR, and `canonical` recognises equal computations. `whole` is what
is known from before a program was divided. Nothing here knows where a program came from or what it
costs. `overlap` is the memory that XLA's scheduler may fill beside collectives.
"""
