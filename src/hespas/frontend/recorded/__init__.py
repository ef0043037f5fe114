"""From a step that PyTorch launched, as it was recorded, to a `Program`.

`load` is the public face. `libraries` writes products, attention and convolutions as calls of the
libraries that run them, `traffic` has a rule for the bytes of every other operation, `groups` finds
the groups of all devices from that of the recorded one, `tensors` gives types and bytes.
"""
