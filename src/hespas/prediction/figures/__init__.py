"""Figures of a prediction: tables and totals, made once, which studies read and reports render.

`schema` names them: `step` and `pipeline` make a `schema.RunReport`, with the tables of
`breakdown` and `communication`, and the `assumptions`.
"""
