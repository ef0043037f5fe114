"""Results as JSON and text, one module for each kind of result.

Each function takes a result (`hespas.prediction.result.Prediction`, a graph's estimate, a
`hespas.simulate.timeline.Timeline`, memory use, presets) and returns a documented JSON object
(``*_json``) or lines for people (``*_text``). `regions.write_region_files` writes the files of a
split. `layers` divides a step among the user's modules, phases and `kinds` of kernels. Nothing is
computed here that a result does not hold, except by `kernels.kernel_rows`, which analyses each
kernel of a compiled program, and `operators.count_operators`.
"""
