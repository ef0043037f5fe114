"""Lower MaxText's training step for accelerators that aren't attached.

Started as ``python worker.py`` by an interpreter that has MaxText, which is seldom the one that
hespas runs in: nothing of hespas is imported. The working directory holds the request
(``request.json``: see `hespas.sources.maxtext.Request`); the worker leaves the program and its
notes there as ``program.mlir`` and ``answer.json``.

The step is MaxText's own, as ``train_compile`` builds it. The worker replaces the parts that would
ask for a device, a data set, a bucket or another framework; a step's program depends on none of
them.
"""

# A type checker knows neither MaxText nor JAX's internals here.

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

# Packages that MaxText imports and a step does not need; installed ones are used.
_NOT_NEEDED = (
    "PIL",
    "drjax",
    "google.cloud",
    "grain",
    "huggingface_hub",
    "jinja2",
    "librosa",
    "ml_goodput_measurement",
    "mlperf_logging",
    "pathwaysutils",
    "sentencepiece",
    "sympy",
    "tensorflow",
    "tiktoken",
    "tokenizers",
    "transformers",
)
_TOPOLOGY = "hespas"
_SHOWN_OF_ERROR = 300
_UNKNOWN_SETTING = re.compile(r"'(\w+)' not in (.*)", re.DOTALL)
_NAME = re.compile(r"[\w.-]+")
# A cuDNN that has every kind of attention MaxText asks for; a real run would find its own.
_CUDNN_VERSION = 91300
_TRANSFORMER_ENGINE, _CUDNN = "cudnn_flash_te", "cudnn_flash_jax"
_REPLACED = f"attention is {_CUDNN}: {_TRANSFORMER_ENGINE} calls the same kernels of cuDNN"
_ALL_AGAIN = (
    "remat_policy=none: MaxText's configuration makes no value of the word, and its layers compute "
    "everything again, as with full"
)
_NO_DATA = {
    "enable_checkpointing": "false",
    "dataset_type": "synthetic",
    "run_name": "hespas",
    "base_output_directory": "output",
    "log_config": "false",
}


class _RefusedError(Exception):
    """A request that cannot be met; the user reads it."""


class _Stub(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []
        self.__version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class _Stubs(MetaPathFinder, Loader):
    """Finder of packages that are not installed and not needed."""

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        stubbed = any(fullname == name or fullname.startswith(f"{name}.") for name in _NOT_NEEDED)
        return ModuleSpec(fullname, self, is_package=True) if stubbed else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        del module


def _module(name: str) -> Any:
    return import_module(name)


def _returning(result: Any) -> Callable[..., Any]:
    """Return a function of any arguments that returns ``made``."""

    def answer(*_arguments: Any, **_options: Any) -> Any:
        return result

    return answer


def main() -> None:
    """Lower the requested step, and write the answer."""
    request = json.loads(Path("request.json").read_text(encoding="utf-8"))
    try:
        answer = _lower(request)
    except _RefusedError as refused:
        answer = {"refused": str(refused)}
    Path("answer.json").write_text(json.dumps(answer), encoding="utf-8")


def _lower(request: Mapping[str, Any]) -> dict[str, Any]:
    _prepare_imports()
    jax = _module("jax")
    # MaxText's train_compile does this before it builds the step.
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    devices = _devices(request)
    notes: list[str] = []
    config, is_replaced = _configuration(request, notes)
    mesh, order = _mesh(config, devices, slices=request["slices"])
    if is_replaced:
        notes.append(_REPLACED)
        _name_as_transformer_engine()
    if request["kind"] == "gpu":
        _divide_cudnn_attention(config, mesh, notes)
    text = without_own_frames(_lowered_step(config, mesh).as_text(debug_info=True))
    Path("program.mlir").write_text(text, encoding="utf-8")
    axes = {name: size for name, size in mesh.shape.items() if size > 1}
    return {
        "devices": len(devices),
        "mesh": axes,
        "order": order,
        "tokens": config.global_batch_size_to_train_on * config.max_target_length,
        "model_flops": _model_flops(config, len(devices)),
        "notes": notes,
    }


def _model_flops(config: Any, devices: int) -> float | None:
    """Return a step's FLOPs as MaxText counts them.

    None for a model, or a version of MaxText, that doesn't count them.
    """
    try:
        count = _module("maxtext.utils.maxtext_utils").calculate_tflops_training_per_device
        tflops_per_device, *_ = count(config, log=False)
        return 1e12 * float(tflops_per_device) * devices
    except (AttributeError, ArithmeticError, KeyError, TypeError, ValueError):
        return None


def without_own_frames(text: str) -> str:
    """Return a program without the place of hespas.

    The same step is then the same bytes wherever that is; MaxText's own frames stay.
    """
    package_path = re.escape(str(Path(__file__).parent))
    return re.sub(
        rf'loc\("{package_path}[^"\n]*":\d+:\d+(?: to (?:\d+)?:\d+)?\)', "loc(unknown)", text
    )


def _prepare_imports() -> None:
    os.environ.update(
        JAX_PLATFORMS="cpu",
        DECOUPLE_GCLOUD="TRUE",
        TPU_SKIP_MDS_QUERY="1",
        # Several programs may be lowered and compiled at the same time.
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    )
    sys.meta_path.append(_Stubs())
    metadata = _module("jax.experimental.xla_metadata")
    if not hasattr(metadata, "must_fuse_call"):
        # A compiler hint that JAX 0.11 introduced, in a kernel that is not lowered here.
        metadata.must_fuse_call = _returning(_unchanged)


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _devices(request: Mapping[str, Any]) -> list[Any]:
    topologies = _module("jax.experimental.topologies")
    try:
        described = topologies.get_topology_desc(
            platform=request["platform"], **request["topology"]
        )
    except NotImplementedError as error:
        raise _RefusedError(
            f"the {request['platform']} compiler is not in MaxText's interpreter"
        ) from error
    return list(described.devices)


def _configuration(request: Mapping[str, Any], notes: list[str]) -> tuple[Any, bool]:
    """Return the step's configuration, and whether TransformerEngine is replaced."""
    _know_topology(request)
    settings = dict(setting.split("=", 1) for setting in request["settings"])
    unused = sorted(
        name for name in _NO_DATA if settings.get(name, _NO_DATA[name]) != _NO_DATA[name]
    )
    if unused:
        notes.append(f"MaxText's {', '.join(unused)} do not decide a step's program: not used")
    is_asked = settings.get("attention") == _TRANSFORMER_ENGINE
    if is_asked:
        settings["attention"] = _CUDNN
    all_settings = (
        settings
        | _NO_DATA
        | {
            "hardware": request["kind"],
            "compile_topology": _TOPOLOGY,
            "compile_topology_num_slices": str(request["slices"]),
        }
    )
    pyconfig = _module("maxtext.configs.pyconfig")
    try:
        config = pyconfig.initialize(
            [
                "train",
                _file(request["config"]),
                *(f"{key}={value}" for key, value in all_settings.items()),
            ]
        )
    except (Exception, SystemExit) as error:
        raise _RefusedError(_complaint(error)) from error
    keys = config.get_keys()
    keys["internal_compile"] = True
    if keys["remat_policy"] is None:
        notes.append(_ALL_AGAIN)
    is_default = keys["attention"] == _TRANSFORMER_ENGINE
    if is_default:
        keys["attention"] = _CUDNN
    return config, is_asked or is_default


def _complaint(error: BaseException) -> str:
    """Return MaxText's complaint about a configuration in one line."""
    cause: Any = error.__context__ if isinstance(error, SystemExit) else error
    unknown = _UNKNOWN_SETTING.match(str(cause))
    if unknown is not None:
        name, setting_names = unknown.groups()
        return f"MaxText has no setting {name}" + _suggestion(name, setting_names)
    if hasattr(cause, "errors"):
        first = cause.errors()[0]
        name = ".".join(map(str, first["loc"]))
        if not name:
            # For settings that contradict each other, the input is all of them.
            return str(first["msg"]).removeprefix("Value error, ")[:_SHOWN_OF_ERROR]
        wrong, choices = first["msg"], str(first.get("ctx", {}).get("expected", ""))
        if choices:
            wrong = "is none of MaxText's" + _suggestion(str(first["input"]), choices)
        return f"{name}={first['input']}: {wrong}"[:_SHOWN_OF_ERROR]
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return "; ".join(lines[:3])[:_SHOWN_OF_ERROR] or type(cause).__name__


def _suggestion(name: str, names: str) -> str:
    close = get_close_matches(name, _NAME.findall(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _file(name: str) -> str:
    named_file = Path(name)
    if named_file.is_file():
        return str(named_file)
    configs = Path(_module("maxtext").__file__ or "").parent / "configs"
    shipped_file = configs / named_file.name
    if shipped_file.is_file():
        return str(shipped_file)
    shipped_names = ", ".join(sorted(path.name for path in configs.glob("*.yml")))
    raise _RefusedError(f"there is no {name}, and MaxText's own are {shipped_names}")


def _know_topology(request: Mapping[str, Any]) -> None:
    specifications = _module("maxtext.utils.accelerator_to_spec_map")
    specifications.UserFacingNameToSystemCharacteristics[_TOPOLOGY] = (
        specifications.SystemCharacteristics(
            request["kind"], None, None, None, request["count"] // request["slices"], None
        )
    )


def _mesh(config: Any, devices: list[Any], *, slices: int) -> tuple[Any, dict[str, Any]]:
    """Return MaxText's mesh, and its order of devices.

    Devices are numbered slice by slice. Their numbers are folded to ``dimensions`` and transposed
    by ``permutation``: the part of an axis between slices is major to that inside of them.
    """
    jax = _module("jax")
    numpy = _module("numpy")
    utilities = _module("maxtext.utils.max_utils")
    train_compile = _module("maxtext.trainers.pre_train.train_compile")
    _check_axes(config.ici_parallelism, len(devices) // slices, "ici_", "devices inside a slice")
    _check_axes(config.dcn_parallelism, slices, "dcn_", "slices")
    fill = utilities.fill_unspecified_mesh_axes
    inside = fill(config.ici_parallelism.copy(), len(devices) // slices, "ICI")
    between = fill(config.dcn_parallelism.copy(), slices, "DCN")
    count = len(inside)
    permutation = [axis for position in range(count) for axis in (position, position + count)]
    grid = numpy.arange(len(devices)).reshape(*between, *inside).transpose(permutation)
    grid = grid.reshape([outer * inner for outer, inner in zip(between, inside, strict=True)])
    explicit = config.shard_mode == _module("maxtext.common.common_types").ShardMode.EXPLICIT
    kinds = jax.sharding.AxisType
    device_grid = numpy.array(devices, dtype=object)[grid]
    _module("maxtext.utils.maxtext_utils").create_device_mesh = _returning(device_grid)
    train_compile.get_topology_desc = _returning(MagicMock(devices=devices))
    jax.config.update(
        "jax_remove_size_one_mesh_axis_from_type", config.remove_size_one_mesh_axis_from_type
    )
    kind = kinds.Explicit if explicit else kinds.Auto
    mesh = jax.sharding.Mesh(
        device_grid, config.mesh_axes, axis_types=(kind,) * len(config.mesh_axes)
    )
    return mesh, {"dimensions": [*between, *inside], "permutation": permutation}


def _check_axes(sizes: Iterable[int], count: int, prefix: str, noun: str) -> None:
    """Refuse axes whose product is another number."""
    longer = [size for size in sizes if size != 1]
    product = prod(size for size in longer if size > 0)
    open_ends = sum(size < 0 for size in longer)
    if open_ends > 1:
        raise _RefusedError(f"{open_ends} axes of {prefix} are -1; give all but one a number")
    if count % product or (not open_ends and count != product):
        raise _RefusedError(
            f"the axes of the mesh ({prefix}..._parallelism) multiply to {product}, and there are "
            f"{count} {noun}; let them multiply to {count}, or give one of them -1"
            + ("" if count % product == 0 else f" and the others divisors of {count}")
        )


def _lowered_step(config: Any, mesh: Any) -> Any:
    """Return the lowered step; refuse configurations MaxText refuses."""
    try:
        return _step(config, mesh)
    except (AssertionError, NotImplementedError, ValueError) as error:
        if _is_raised_by("maxtext", error):
            complaint = _complaint(error)
        elif _is_raised_by("tokamax", error):
            complaint = (
                f"attention={config.attention} calls kernels of tokamax that are chosen by the "
                "device, and there is none; give attention=cudnn_flash_te for GPUs, "
                "attention=flash for TPUs, or attention=dot_product"
            )
        else:
            raise
        traceback.print_exception(error)
        raise _RefusedError(complaint) from error


def _is_raised_by(package: str, error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and package in Path(trace.tb_frame.f_code.co_filename).parts


def _step(config: Any, mesh: Any) -> Any:
    jax = _module("jax")
    rules = _module("flax.core.spmd").logical_axis_rules
    sharding = _module("maxtext.utils.sharding")
    utilities = _module("maxtext.utils.maxtext_utils")
    train = _module("maxtext.trainers.pre_train.train")
    train_compile = _module("maxtext.trainers.pre_train.train_compile")
    arguments, keywords, states, _, model = train_compile.get_shaped_inputs(mesh, config)
    parameters, states = sharding.maybe_update_params_sharding_with_opt(config, states)
    inputs = sharding.build_zero1_input_state_mesh_shardings(config, states, parameters)
    step, into, out, static, donated = utilities.get_functional_train_with_signature(
        train.train_step,
        sharding.get_input_data_sharding(config, mesh),
        inputs,
        model,
        config,
        parameters,
    )
    with jax.set_mesh(mesh), rules(config.logical_axis_rules):
        jitted = jax.jit(
            step,
            in_shardings=into,
            out_shardings=out,
            static_argnums=static,
            donate_argnums=donated,
        )
        return jitted.lower(*arguments, **keywords)


def _divide_cudnn_attention(config: Any, mesh: Any, notes: list[str]) -> None:
    """Let every device call cuDNN on its own part.

    JAX divides these calls by a callback into Python, which a compiler in another process can't
    make.

    If sequences are divided too, devices gather keys and values, and each has queries from both
    ends of the sequence: each then has as many of the pairs that a causal mask leaves, as have its
    queries with half of the keys.
    """
    jax = _module("jax")
    cudnn = _module("jax._src.cudnn.fused_attention_stablehlo")
    to_mesh = _module("maxtext.utils.sharding").logical_to_mesh_axes
    batch, heads = "activation_batch_attn", "activation_heads"
    parts = int(mesh.shape[config.context_sharding])
    if parts > 1 and config.attention == _CUDNN:
        notes.append(
            f"attention over sequences that are divided in {parts}: keys and values are gathered, "
            "and each device has as many pairs of a causal mask"
        )

    def specification(names: Iterable[str | None], along: int | None = None) -> Any:
        axes = list(to_mesh(tuple(names), mesh=mesh, rules=config.logical_axis_rules))
        if along is not None and parts > 1:
            axes[along] = config.context_sharding
        return jax.sharding.PartitionSpec(*axes)

    def divided(attention: Callable[..., Any]) -> Callable[..., Any]:
        def call(query: Any, key: Any, value: Any, **options: Any) -> Any:
            operand = (batch, None, heads, None)
            queries, full = specification(operand, along=1), specification(operand)
            statistics = specification((batch, heads, None), along=2)
            seen = key.shape[1]
            if parts > 1:
                seen //= 2
                options["mask_type"] = cudnn.MaskType.NO_MASK

            def on_one(query: Any, key: Any, value: Any) -> Any:
                return attention(query, key[:, :seen], value[:, :seen], **options)

            return jax.shard_map(
                on_one,
                mesh=mesh,
                in_specs=(queries, full, full),
                out_specs=(queries, statistics),
                check_vma=False,
            )(query, key, value)

        return call

    cudnn.check_cudnn_version = _returning(_CUDNN_VERSION)
    cudnn.dot_product_attention = divided(cudnn.dot_product_attention)


def _name_as_transformer_engine() -> None:
    """Let rematerialisation policies find the names of TransformerEngine.

    It names what its forward pass keeps, inside of the function that has a gradient of its own.
    MaxText names what JAX's function returns, outside: a policy that keeps that keeps nothing that
    the backward pass reads, and calls the forward kernel again.
    """
    naming = _module("jax.ad_checkpoint")
    cudnn = _module("jax._src.cudnn.fused_attention_stablehlo")
    primitive = cudnn._dot_product_attention_fwd_p_wrapper.bind  # noqa: SLF001

    def named(*operands: Any, **options: Any) -> list[Any]:
        return [
            naming.checkpoint_name(output, "context") for output in primitive(*operands, **options)
        ]

    def unnamed(value: Any, _name: str) -> Any:
        return value

    cudnn._dot_product_attention_fwd_p_wrapper = MagicMock(bind=named)  # noqa: SLF001
    _module("maxtext.layers.attention_op").checkpoint_name = unnamed


if __name__ == "__main__":
    main()
