"""The intermediate representation: data only.

Types, attributes, operations and programs, their canonical form and their printer. Nothing
here knows where a program came from or what it costs.
"""
