"""Read a recorded step of PyTorch as a `Program`.

`load` is the public interface. `libraries` writes products, attention and convolutions as library
calls, `traffic` has a rule for the bytes of every other operation, `groups` derives the groups of
all devices from the recorded rank's, `tensors` gives types and bytes.
"""
