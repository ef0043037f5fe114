"""Facts of each kind of operation.

`traits` defines the record, `table` joins the families. A file for each family holds its records
and the functions that count its work.
"""
