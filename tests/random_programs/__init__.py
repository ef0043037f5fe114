"""Programs that are drawn at random, and what must hold of each of them.

`grammar` draws functions in StableHLO's text, with loops, branches and calls; `operations` has what
stands in them, `collectives` what moves data between devices. `laws` says what is checked, with the
`compilers` of XLA that there are.
"""
