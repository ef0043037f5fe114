"""Count a Mosaic kernel over its whole grid.

`kernel` finds the kernel in a custom call, adds it up, and counts the blocks that move between
memory and chip; `walk` runs its body over all steps at once, with the numbers (`scalars`) that
decide which steps do what; `tally` assigns each vector operation to a unit.
"""
