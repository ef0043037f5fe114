"""Launch scripts: which arguments they pass, and which are left open."""

from __future__ import annotations

import pytest

from hespas.errors import ConfigError
from hespas.models.megatron_shell import shell_arguments

LAUNCH = "\ntorchrun --nproc_per_node 8 pretrain_gpt.py ${ARGS[@]}\n"


def passed(text: str) -> dict[str, tuple[str, ...]]:
    found = shell_arguments(text, "run.sh", ignores=lambda name: name in {"save", "lr"})
    return {argument.name: argument.values for argument in found}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ARGS=(--num-layers 32 --bf16)", {"num_layers": ("32",), "bf16": ()}),
        ("ARGS=(--bf16)\nARGS+=(--fp8-format hybrid)", {"bf16": (), "fp8_format": ("hybrid",)}),
        ('ARGS=("--fp8-format hybrid" "--bf16")', {"fp8_format": ("hybrid",), "bf16": ()}),
        ("ARGS=(\n  --lr 1 # slow\n  # --bf16\n  --tp 2\n)", {"lr": ("1",), "tp": ("2",)}),
        ("H=4096\nARGS=(--ffn $((H * 7 / 2)))", {"ffn": ("14336",)}),
        ("N=$((2*$M))\nM=3\nN=$((2*$M))\nARGS=(--tp=$N)", {"tp": ("6",)}),
        ("ARGS=(--tp ${TP:-4})", {"tp": ("4",)}),
        ("MORE=(--bf16)\nARGS=(--tp 2)", {"tp": ("2",)}),
        ("MORE=(--bf16)\nARGS=(--tp 2 ${MORE[@]})", {"tp": ("2",), "bf16": ()}),
        ('P=fp8\nif [ "$P" = fp8 ]; then ARGS+=(--fp8-format e4m3); fi', {"fp8_format": ("e4m3",)}),
        ('P=x\nif [[ $P == fp8 ]]; then\nARGS=(--a)\nelse\nARGS=(--b)\nfi', {"b": ()}),
        ('P=1\nif [[ $P -gt 1 || "$P" == 1 ]]; then ARGS=(--a); fi', {"a": ()}),
        ("P=2\nif (( P > 1 )); then ARGS=(--a); elif true; then ARGS=(--b); fi", {"a": ()}),
        ("P=1\n[ $P -eq 2 ] && ARGS=(--a)\nARGS+=(--b)", {"b": ()}),
        ("S=8b\ncase $S in\n 70b) ARGS=(--a);;\n 8b|9b) ARGS=(--b) ;;\nesac", {"b": ()}),
        ("while [[ $# -gt 0 ]]; do case $1 in --tp) ARGS=(--x); shift;; esac; done\nARGS=(--b)",
         {"b": ()}),
        ("if [ -d /data ]; then ARGS+=(--save /data); fi\nARGS+=(--b)",
         {"save": ("/data",), "b": ()}),
        ("cat > /tmp/x <<EOF\n--a b\nEOF\nARGS=(--b)", {"b": ()}),
        ("echo --a 1\nARGS=(--b) 2>&1", {"b": ()}),
    ],
)  # fmt: skip
def test_what_a_script_passes_is_read(text: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert passed(text + LAUNCH) == expected


@pytest.mark.parametrize(
    "launch",
    [
        "torchrun x.py $GPT $MORE",
        "python -m torch.distributed.run --nnodes 1 x.py \\\n  $GPT \\\n  $MORE | tee log",
        'CMD="python -u x.py ${GPT} ${MORE}"\nsrun --ntasks 8 bash -c "$CMD"',
        "torchrun x.py $GPT $MORE $@",
    ],
)
def test_arguments_in_strings_are_read(launch: str) -> None:
    text = f'GPT="\n --num-layers 24 \\\n --lr 1e-5\n"\nMORE="--fp16"\n{launch}\n'
    assert passed(text) == {"num_layers": ("24",), "lr": ("1e-5",), "fp16": ()}


def test_a_file_may_have_arguments_alone() -> None:
    expected = {"tp": ("2",), "freq": ("([0]*3+[1]*5)",), "bf16": ()}
    assert passed("--tp 2\n--freq ([0]*3+[1]*5)\n--bf16\n") == expected
    assert passed("--tp\r\n2\r\n--freq '([0]*3+[1]*5)'\r\n--bf16\r\n") == expected
    assert passed("A=(--tp 2)\nB=(--freq '([0]*3+[1]*5)' --bf16)\n") == expected


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("if [ $FP8 = 1 ]; then ARGS=(--fp8); fi", ("run.sh:1", "whether --fp8 is given")),
        ("\nfor X in 1 2; do\nARGS+=(--a)\ndone", ("run.sh:3", "whether --a is given")),
        ("more() {\n ARGS+=(--a)\n}", ("run.sh:2", "whether --a is given")),
        ("[ -f x ] && ARGS=(--a)", ("whether --a is given",)),
        ("ARGS=(--tp $TP)", ("--tp is $TP, which the file does not set", "write TP=")),
        ("if [ $X = 1 ]; then TP=2; fi\nARGS=(--tp $TP)", ("--tp is $TP",)),
        ("N=$(nproc)\nARGS=(--tp $N)", ("--tp is $(nproc)",)),
        ("ARGS=(--lr 1 $EXTRA)", ("$EXTRA stands among the arguments",)),
        ("ARGS=(--lr '1)", ("run.sh:1", "no line of a shell")),
    ],
)
def test_what_a_script_leaves_open_is_named(text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        passed(text + LAUNCH)
    assert all(part in str(refused.value) for part in parts), str(refused.value)
