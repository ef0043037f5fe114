"""What is known of each kind of operation: `traits` has the record, `table` joins the families.

A file for each family holds its records, and beside them the functions that count its work; `sizes`
holds what these read off an operation's types.
"""
