"""Record PyTorch's training steps for GPUs that are not attached.

A user's function goes in, a `hespas.program.recorded.RecordedStep` comes out: what one rank
launches, in order, and its memory. `worker` is a process of its own, asked with `messages`. It
gives torch fake devices (`guard`, `device`, `streams`) and a fake process group (`groups`), calls
the function (`script`), runs its step twice, and records the second (`recorder`, into a `tape`,
with module names and source lines of `places`). `libraries` chooses kernels as torch does on a GPU,
`compiling` and `kernels` let Inductor compile; `hugging_face` has functions of its own. Tensors
have shapes and no data: `FakeTensorMode` is torch's own.

torch is pinned, as its internals change with each version: `messages.PINNED`. No other folder
imports torch's internals, and only the worker's process imports these modules, but for `messages`.
"""
