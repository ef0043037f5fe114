"""Figures of a prediction, for studies and reports.

`schema` names them: `step` and `pipeline` make a `schema.RunReport`, with the tables of
`breakdown` and `communication`, and the `assumptions`.
"""
