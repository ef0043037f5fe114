"""``method: systolic``: matrix products on an array of multipliers, in closed form.

`array` counts cycles; `method` prices operations by them, or by any other `ProductTimer`, which is
how `backends` has simulators price products.
"""
