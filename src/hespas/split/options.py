"""Options of how a program is divided into regions."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from hespas.base.fields import Group, Use, check_options, declare, refuse_unused
from hespas.base.frozen import frozen
from hespas.errors import option

COMMUNICATION_SEPARATOR = "is_communication_op"
DEFAULT_BLOCK_LIMIT = 1024


class SplitStrategy(Enum):
    """The documented values of ``split_strategy``."""

    LINEAR = "linear_split"
    INDIVIDUAL = "individual_split"


class SeparatorPolicy(Enum):
    """The position of a separator: alone, ending a block, or starting one."""

    ISOLATED = "isolated"
    END_BLOCK = "end_block"
    START_BLOCK = "start_block"


OPERATIONS = Use(" on a program that is scheduled: its kernels are the regions")
BLOCKS = Use(" on individual_split", f"drop it, or add {option('merge')}")
SEPARATORS = Use(" on individual_split")
COMPUTATION = Use(
    " on collectives, which are always regions of their own",
    "drop it, or name a computing separator such as stablehlo.dot_general",
)


@frozen
class SplitOptions:
    """How to split a program.

    ``separator`` is ``is_communication_op`` or the full name of an operation, such as
    ``stablehlo.dot_general``, which then separates blocks too. A collective is always a region of
    its own; ``separator_policy`` places separators that compute. With ``block_limit`` None, the
    linear split has the limit `DEFAULT_BLOCK_LIMIT` and merging has none.
    """

    GROUP: ClassVar[Group] = Group.DIVISION

    strategy: SplitStrategy = declare(
        help="How to cut the program.",
        name="split_fn",
        aliases=("split",),
        key="split_strategy",
        default=SplitStrategy.LINEAR,
    )
    block_limit: int | None = declare(
        help="Most operations in a block.",
        name="block_lim",
        key="block_lim",
        least=1,
        applies_to=(BLOCKS, OPERATIONS),
        default_text=f"{DEFAULT_BLOCK_LIMIT}; none if merging",
    )
    merge: bool = declare(
        help="Join regions, delaying no collective.",
        key="merge",
        applies_to=(OPERATIONS,),
        negatable=True,
        default=False,
    )
    separator: str = declare(
        help="What parts the program: communication, or an operation's full name as well.",
        key="separator",
        applies_to=(SEPARATORS, OPERATIONS),
        metavar="OPERATION",
        default=COMMUNICATION_SEPARATOR,
    )
    separator_policy: SeparatorPolicy = declare(
        help="Where a separator that computes goes.",
        key="separator_policy",
        applies_to=(COMPUTATION, OPERATIONS),
        default=SeparatorPolicy.ISOLATED,
    )

    def __post_init__(self) -> None:
        check_options(self)
        is_individual = self.strategy is SplitStrategy.INDIVIDUAL
        absent = {
            BLOCKS: is_individual and not self.merge,
            SEPARATORS: is_individual,
            COMPUTATION: self.separator == COMMUNICATION_SEPARATOR,
        }
        refuse_unused(self, absent)
