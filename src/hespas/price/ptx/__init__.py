"""``method: kernel``: price GPU kernels from the PTX that the compiler wrote.

The input is a kernel's text and its launch; the output is a `terms.KernelAnalysis` (what one block
of threads executes and touches), its `terms.KernelTerms` (the cost of each limit), and a time. The
steps, in order: `parser`, `walk` (with `opcodes` and `memory`), `reading`, `terms`; `categories`
where no text is known. Other folders use `kernels.KernelPricer`, which does all of them and caches
analyses, and `terms.reasons`.
"""
