"""Published step times of ResNets on four A100s, against the whole pipeline.

    python validation/resnet.py            print the table
    python validation/resnet.py --write    put it into docs/evidence/accuracy.md

As `validation/llama3.py` does it; the convolutions are cuDNN's, by a model of their own.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from hespas.export.exported import partitioned
from hespas.export.function import export_model
from hespas.xla.cpu import use_cpu
from llama3 import PAGE, Point, compiled, point_of, points_table

_TABLE = re.compile(r"<!-- resnet -->\n.*?<!-- end -->", re.DOTALL)
PUBLISHED_S: Mapping[str, float] = {"resnet18": 0.04, "resnet50": 0.10}
"""Training steps on 4 x A100 SXM 40 GB, 256 images of 224 x 224 a GPU; published with the documents
of the reference implementation."""


def predicted(model: str) -> Point:
    """Predict one step."""
    exported = partitioned(export_model(model))
    return point_of(compiled(model, "A100", exported.text), PUBLISHED_S[model])


def main() -> None:
    """Print the table, or write it into the page."""
    use_cpu()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    made = points_table([predicted(model) for model in PUBLISHED_S])
    if not parser.parse_args().write:
        print(made)
        return
    page = PAGE.read_text()
    PAGE.write_text(_TABLE.sub(lambda _: f"<!-- resnet -->\n{made}\n<!-- end -->", page))


if __name__ == "__main__":
    main()
