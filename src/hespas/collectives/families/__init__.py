"""The collective algorithms, one file each: the folder is the registry.

A file describes one algorithm in a constant ``ALGORITHM``, a
`hespas.collectives.schedule.CollectiveAlgorithm`; its name is the file's, with hyphens. Nothing
else has to be changed to add one: `hespas.collectives.registry` finds it, and with it the network
model, programs in MSCCL's form, their verification, and the tests do.
"""
