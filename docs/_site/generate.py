"""Write the generated reference pages: options of commands, node presets, system presets.

    python docs/_site/generate.py DIRECTORY

Everything comes from the command line itself and from the preset files, so that these pages cannot
disagree with either.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

import click  # noqa: E402 - after the path to the source of this checkout

from hespas.cli.commands import command_named, commands, run  # noqa: E402 - as above
from hespas.cli.help import grouped  # noqa: E402 - as above

CONFIGS = ROOT / "src" / "hespas" / "configs"


def command_names() -> list[str]:
    """Return the names of all commands, in the order in which `hespas --help` lists them."""
    return commands.list_commands(click.Context(commands))


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _flags(option: click.Option) -> str:
    """Return the spellings of an option; those with underscores are second names."""
    shown = [name for name in (*option.opts, *option.secondary_opts) if "_" not in name]
    return ", ".join(f"`{name}`" for name in shown)


def _value(option: click.Option, context: click.Context) -> str:
    if option.is_flag:
        return ""
    return f"`{option.make_metavar(context)}`".replace("|", "\\|")


def _rows(options: Iterable[click.Option], context: click.Context) -> Iterator[str]:
    for option in options:
        _, meaning = option.get_help_record(context) or ("", "")
        cells = (_flags(option), _value(option, context), _escaped(meaning))
        yield f"| {' | '.join(cells)} |"


def _sections(name: str) -> list[str]:
    """Return the section of a command, and those of the commands of a group."""
    command = command_named(name)
    inner = dict(command.commands) if isinstance(command, click.Group) else {}
    found = [_section(name, command)]
    return found + [_section(f"{name} {each}", inner[each]) for each in inner]


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"hespas {name}")
    usage = " ".join(["hespas", name, *command.collect_usage_pieces(context)])
    lines = [f"## hespas {name}", "", _escaped(command.get_short_help_str(limit=200)), ""]
    lines += ["```", usage, "```"]
    for group, options in grouped(command.get_params(context)).items():
        lines += ["", f"**{group.value}**", "", "| option | value | meaning |", "|---|---|---|"]
        lines += _rows(options, context)
    return "\n".join(lines)


def options_page() -> str:
    """Return the page of all options of all commands."""
    head = (
        "# Options\n\n"
        "This page lists every option of every command, in the groups of `hespas COMMAND --help`, "
        "which shows the first spelling of each. "
        "[Commands](commands.md) says what each command is for. Each option can also be spelled "
        "with underscores, as in `--mlir_file`."
    )
    return (
        "\n\n".join([head, *(each for name in command_names() for each in _sections(name))]) + "\n"
    )


def _hardware() -> Any:
    with redirect_stdout(StringIO()) as shown:
        if run(commands, "hespas", ["hardware", "--json", "-"]) != 0:
            raise SystemExit("hespas hardware failed")
    return json.loads(shown.getvalue())


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float | None, unit: float) -> str:
    return "unknown" if value is None else f"{value / unit:g}"


def _node_row(name: str, node: Any) -> tuple[str, ...]:
    file = json.loads((CONFIGS / "nodes" / name / "node.json").read_text())
    rates = ", ".join(f"{key} {rate / 1e12:g}" for key, rate in node["per_datatype_flops"].items())
    return (
        f"`{name}`",
        _number(node["peak_flops"], 1e12),
        rates,
        _number(node["memory_bandwidth_bytes_per_s"], 1e9),
        _number(node["memory_capacity_bytes"], 2**30),
        _number(node["tdp_w"], 1),
        file.get("target") or "none",
        file.get("tables") or "none",
        file["sources"]["memory_bandwidth"].partition(":")[0],
    )


NODES = """# Node presets

This page lists the node presets: one accelerator each, for `--node`. `hespas hardware NAME` prints
every figure of a preset with its source. [Your own hardware](../how-to/own-hardware.md) shows how
to describe another one.

* *Other types* is the rate of every element type that has no rate of its own.
* Peak rates are dense. Where a datasheet prints only the rate with sparsity, half of it is used.
* Bandwidth is decimal (1 GB/s is 1e9 bytes per second); memory is binary (1 GiB is 2**30 bytes).
* *Target* is what `hespas compile --target` compiles for; *tables* are the
  [measured tables](measured-tables.md) that `--method measured` uses.
"""

SYSTEMS = """# System presets

This page lists the system presets: several nodes and the network between them, for `--system`.
Devices of one dimension are connected in the same way; `x 4` means four per group. Bandwidths in
ASTRA-sim's files, and so in this table, are in GiB/s: 2**30 bytes per second. The algorithms are
those of ASTRA-sim's `all-reduce-implementation`, one for each dimension.

Every system runs all four collectives with the same algorithms, with an endpoint delay of 1 ns, one
chunk, ASTRA-sim's `localBWAware` optimisation and no remote memory. Bandwidths of the documented
preset set are effective ones, not vendors' peaks. Nodes and racks beyond that set
(`H100_80GB_8GPU*`, `H200_141GB_8GPU*`, `B300_*`, `GB200_*`, `GB300_*`, `L40S_48GB_8GPU`) have the
vendor's bandwidth of one direction, and the [measured links](links.md) for `--model hespas`. Slices
of TPUs have the vendor's bandwidth of one link in one direction, and an assumed latency of 1 us.
"""


def nodes_page() -> str:
    """Return the page of node presets."""
    head = (
        "node",
        "other types, TFLOP/s",
        "by element type, TFLOP/s",
        "memory, GB/s",
        "memory, GiB",
        "power, W",
        "target",
        "tables",
        "source",
    )
    rows = [_node_row(name, node) for name, node in _hardware()["nodes"].items()]
    return f"{NODES}\n{_table(head, rows)}\n"


def _system_row(name: str, system: Any) -> tuple[str, ...]:
    file = json.loads((CONFIGS / "systems" / name / "astra-sim" / "system.json").read_text())
    dimensions = "; ".join(
        f"{each['topology']} x {each['npus_count']}, {each['bandwidth_gib_per_s']:g} GiB/s, "
        f"{each['latency_ns'] / 1e3:g} us"
        for each in system["dimensions"]
    )
    local = file.get("local-mem-bw")
    return (
        f"`{name}`",
        str(system["devices"]),
        dimensions,
        "none" if local is None else f"{local:g}",
        ", ".join(file["all-reduce-implementation"]),
    )


def systems_page() -> str:
    """Return the page of system presets."""
    head = ("system", "devices", "dimensions", "local memory, GB/s", "algorithms")
    rows = [_system_row(name, system) for name, system in _hardware()["systems"].items()]
    return f"{SYSTEMS}\n{_table(head, rows)}\n"


PAGES = {
    "reference/options.md": options_page,
    "reference/nodes.md": nodes_page,
    "reference/systems.md": systems_page,
}


def main() -> None:
    """Write all pages beneath the directory that the command line names."""
    for name, page in PAGES.items():
        path = Path(sys.argv[1], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page())


if __name__ == "__main__":
    main()
