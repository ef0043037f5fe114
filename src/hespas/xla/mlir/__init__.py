"""MLIR modules through jaxlib's bindings.

`module` parses text, bytecode and portable artifacts, runs passes and lists a module's symbols.
`functions` walks a function into `hespas.program` operations, with attribute readers given by the
caller. `text` reads the text of types and attributes.
"""
