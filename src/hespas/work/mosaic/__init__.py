"""What a Mosaic kernel does over its whole grid: products, vector operations, blocks moved.

`kernel` finds the kernel in a custom call, adds it up, and counts the blocks that move between
memory and chip; `walk` runs its body over all steps at once, on the numbers (`scalars`) that decide
which steps do what; `tally` says what unit an operation on vectors uses.
"""
