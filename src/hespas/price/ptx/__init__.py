"""``method: kernel``: what a GPU kernel takes, read from the PTX that the compiler wrote.

In come a kernel's text and its launch; out come a `terms.KernelAnalysis` (what one block of threads
executes and touches), its `terms.KernelTerms` (what each limit costs), and a time. The steps, in
order: `parser`, `walk` (with `opcodes` and `memory`), `reading`, `terms`; `categories` where no
text is known. Other folders use `kernels.KernelPricer`, which does all of them and caches analyses,
and `terms.reasons`.
"""
