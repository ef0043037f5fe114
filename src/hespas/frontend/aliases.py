"""Which results of a program may be written over its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hespas.program.program import Alias, Function
from hespas.xla.mlir_text import split_list

_LISTED = re.compile(
    r"parameter_index = array<i64>, parameter_number = (\d+) : i64\}, "
    r"output_index = array<i64(?:: (\d+))?>\}"
)
_NAMED = re.compile(r"tf\.aliasing_output = (\d+) : i32")
_DONOR = re.compile(r"jax\.buffer_donor = true")


def read_aliases(
    main: Function, main_attributes: Mapping[str, str], module_attributes: Mapping[str, str]
) -> tuple[Alias, ...]:
    """Return the aliases that a StableHLO program declares, sorted.

    XLA lists them on the module (``mhlo.input_output_alias``), JAX on the arguments, each with
    its result (``tf.aliasing_output``) or free for any (``jax.buffer_donor``): the first result
    of the same type that has no argument yet takes that one, as XLA does it.
    """
    listed = module_attributes.get("mhlo.input_output_alias", "")
    entries = split_list(main_attributes.get("arg_attrs", "[]")[1:-1])
    argument_of = {int(result or 0): int(number) for number, result in _LISTED.findall(listed)}
    for argument, entry in enumerate(entries):
        named = _NAMED.search(entry)
        if named is not None:
            argument_of[int(named[1])] = argument
    donors = [at for at, entry in enumerate(entries) if _DONOR.search(entry)]
    argument_of.update(_matched(main, donors, argument_of))
    return tuple(
        [Alias(result=result, argument=argument_of[result]) for result in sorted(argument_of)]
    )


def _matched(
    main: Function, donors: list[int], taken: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield (result, argument) for the arguments that are given away for any result."""
    free = [at for at in range(len(main.results)) if at not in taken]
    for donor in donors:
        kind = main.body.arguments[donor].type
        result = next((at for at in free if main.results[at].type == kind), None)
        if result is not None:
            free.remove(result)
            yield result, donor
