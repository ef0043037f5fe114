"""``method: kernel``: what a GPU kernel takes, read from the PTX that the compiler wrote.

In come a kernel's text and its launch; out come an `analysis.KernelAnalysis` (what one block of
threads executes and touches), its `terms.KernelTerms` (what each limit costs), and a time.
The steps, in order: `parser`, `control_flow`, `walk` (with `arithmetic` and `memory`), `pipes`,
`reading`, `terms`. Other folders use `kernels.KernelPricer`, which does all of them and caches
analyses, and `terms.reasons`.
"""
