"""The public functions: predict, measure and compare.

They call `hespas.prediction`, `hespas.serve`, `hespas.evidence.measure` and `hespas.study`;
`hespas.stages` has the stages one by one. Each imports its modules when it is called: ``import
hespas`` stays light.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from hespas.stages import METHOD, check_kind, estimate_options

if TYPE_CHECKING:
    from hespas.compile.options import CompileOptions
    from hespas.evidence.measure.measured import Measurement
    from hespas.hardware.device import Device
    from hespas.hardware.system import System
    from hespas.prediction.goodput import GoodputOptions
    from hespas.prediction.options import PredictOptions
    from hespas.prediction.overrides import ModelOverrides, Overrides, PipelinedOverrides
    from hespas.program.program import Program
    from hespas.report.answers import Answer, PipelineAnswer
    from hespas.report.plot import StudyAnswer
    from hespas.serve.answer import ServingReport
    from hespas.serve.overrides import ServingOverrides
    from hespas.study.study import Study

__all__ = ["measure_step", "predict", "predict_pipeline", "predict_serving", "run_study"]


def predict(
    workload: Program | str | Path,
    node: Device | str | Path | None = None,
    system: System | str | Path | None = None,
    *,
    options: PredictOptions | None = None,
    compiler: CompileOptions | None = None,
    long_run: GoodputOptions | None = None,
    **overrides: Unpack[Overrides],
) -> Answer:
    """Predict the duration of one step of a program.

    ``workload`` is a program, its file, a model of the zoo or ``package.module:function``.
    ``node`` is a description, a preset's name or a path, also that of a configuration (``.json``)
    of another method than the roofline; by default it is the cluster's part. ``system`` is a
    description, a preset's name or a directory, and ``cluster`` is ``COUNTxPART``: a program that
    communicates needs one of them. ``compiler`` has the options of a compilation, and ``long_run``
    those of a run of many steps on devices that fail.

    ``overrides`` are those of ``hespas run`` (`hespas.prediction.overrides.Overrides`), by the
    names of fields of `PredictOptions`: they replace what ``options`` has. Raises
    `hespas.errors.HespasError`, as the other functions do.

    >>> prediction = predict("examples/attention_block.mlir", "A100_SXM_40GB",
    ...                      "A100_SXM_40GB_4GPU", fidelity="exported", model="astra-sim")
    >>> prediction.devices, round(prediction.step_time_s * 1e6, 1)
    (4, 27.6)
    """
    from hespas.base.fields import refuse_unused
    from hespas.errors import ConfigError
    from hespas.prediction import composition
    from hespas.program.program import Program
    from hespas.report.answers import answer_of
    from hespas.sources.options import MODEL, TORCH

    check_kind(workload, (Program, str, Path), "a program or its file", "give one of these")
    program = workload if isinstance(workload, Program) else None
    chosen = _chosen(
        None if isinstance(workload, Program) else workload,
        node=node,
        system=system,
        options=options,
        compiler=compiler,
        long_run=long_run,
        overrides=overrides,
    )
    absent = program is not None and "a program"
    refuse_unused(chosen.program.model, {MODEL: absent})
    refuse_unused(chosen.program.torch, {TORCH: absent})
    if chosen.is_pipeline:
        raise ConfigError(
            f"the mesh {overrides.get('mesh')} divides the model into stages",
            hint="call hespas.predict_pipeline",
        )
    return answer_of(composition.predict(chosen, program=program))


def predict_pipeline(
    model: str,
    cluster: System | str,
    *,
    mesh: str,
    node: Device | str | Path | None = None,
    network_model: str | None = None,
    long_run: GoodputOptions | None = None,
    **overrides: Unpack[PipelinedOverrides],
) -> PipelineAnswer:
    """Predict a step of a model in pipeline stages.

    It is ``hespas run`` with an axis ``pipe`` in the ``mesh``. ``network_model`` is ``model`` of
    `simulate`; all else is as in `predict`. A stage that cannot fit into memory is refused unless
    ``ignore_memory`` is set. Raises what `hespas.prediction.staged.predict_pipeline` raises.

    >>> predicted = predict_pipeline("llama3-100m", "2xH100_80GB", mesh="pipe=2", global_batch=8,
    ...                              sequence=256, fidelity="fused", settings={"layers": "2"})
    >>> predicted.devices, predicted.cut.schedule.name, len(predicted.stages)
    (2, '1f1b', 2)
    """
    from hespas.errors import ConfigError
    from hespas.prediction import staged
    from hespas.report.answers import pipeline_answer_of

    check_kind(model, str, "a model's name", "hespas export --list has them")
    changes = {**overrides, "cluster": cluster, "mesh": mesh, "model": network_model}
    chosen = _chosen(model, node=node, long_run=long_run, overrides=changes)
    if not chosen.is_pipeline:
        raise ConfigError(
            f"the mesh {mesh} has no axis pipe of several stages", hint="call hespas.predict"
        )
    return pipeline_answer_of(staged.predict_pipeline(chosen))


def predict_serving(
    model: str, cluster: str, **overrides: Unpack[ServingOverrides]
) -> ServingReport:
    """Predict latencies and throughput of a model under load.

    It is ``hespas serve``: ``cluster`` is ``COUNTxPART``, and the ``overrides`` are its options by
    the names of fields. What it returns has the keys of the command's JSON. Raises what
    `hespas.serve.serving.serving` raises.

    >>> served = predict_serving("Qwen/Qwen3-0.6B", "2xH100_80GB", mesh="tp=1", rate=5,
    ...                          requests=50, isl=128, osl=16, settings={"layers": "2"})
    >>> served.replicas, served.load, served.requests
    (2, 'stable', 50)
    """
    from hespas.base.fields import overridden
    from hespas.errors import ConfigError
    from hespas.serve.options import NOT_SERVED, ServeOptions
    from hespas.serve.serving import serving

    check_kind(model, str, "a model's name", "hespas models has them")
    check_kind(cluster, str, "a cluster", "write it as in 8xH100_80GB")
    for name in sorted(NOT_SERVED & overrides.keys()):
        raise ConfigError(f"{name} means nothing for what is served", hint="drop it")
    options = ServeOptions(model_name=model, cluster=cluster)
    return serving(overridden(options, overrides))


def _chosen(
    workload: str | Path | None,
    *,
    node: Device | str | Path | None,
    system: System | str | Path | None = None,
    options: PredictOptions | None = None,
    compiler: CompileOptions | None = None,
    long_run: GoodputOptions | None = None,
    overrides: Mapping[str, object],
) -> PredictOptions:
    """Return a prediction's options with overrides."""
    from dataclasses import replace

    from hespas.base.fields import overridden
    from hespas.errors import ConfigError
    from hespas.hardware.device import Device
    from hespas.hardware.system import System
    from hespas.prediction.frameworks import with_framework
    from hespas.prediction.options import PredictOptions

    cluster, method = overrides.get("cluster"), overrides.get("method")
    check_kind(
        node, (Device, str, Path, type(None)), "a device or its name", "name a preset or a path"
    )
    check_kind(system, (System, str, Path, type(None)), "a system or its name", "name a preset")
    check_kind(cluster, (System, str, type(None)), "a cluster", "write it as in 32xH100_80GB")
    check_kind(method, (str, type(None)), *METHOD)
    if system is not None and cluster is not None:
        raise ConfigError("both a cluster and a system are given", hint="drop one")
    base = PredictOptions() if options is None else options
    changes = dict(overrides)
    if node is not None:
        described = estimate_options(node, method=None if method is None else str(method))
        changes |= {
            "node": described.node,
            "method": described.method,
            "hardware": described.hardware,
        }
    for name in ("imperfect", "variation"):
        if isinstance(changes.get(name), Path):
            changes[name] = str(changes[name])
    chosen = with_framework(overridden(base, {**changes, "file": workload, "system": system}))
    return replace(
        chosen,
        compile=chosen.compile if compiler is None else replace(chosen.compile, options=compiler),
        long_run=chosen.long_run if long_run is None else long_run,
    )


def measure_step(
    workload: str | Path,
    *,
    platform: str = "auto",
    devices: int | None = None,
    steps: int = 10,
    warm_up: int = 3,
    xla_flags: Mapping[str, str] | None = None,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    time_limit_s: float = 1800.0,
    **overrides: Unpack[ModelOverrides],
) -> Measurement:
    """Run and time a step, as ``hespas measure`` does.

    ``workload`` is a program's file, a model of the zoo, which the ``overrides`` are for, or
    ``package.module:function``. ``platform`` is ``cpu`` (virtual devices),
    ``gpu``, ``tpu``, or the best there is (``auto``). ``coordinator``, ``num_processes`` and
    ``process_id`` are those of ``jax.distributed``, on several hosts. JAX is started in a process
    of its own. What it returns holds all durations; its ``error_of(prediction)`` is how far off a
    prediction of `predict` is. Raises what `hespas.evidence.measure.measured.measure_step` raises.

    >>> small = {"m": "8", "n": "8", "k": "8"}
    >>> measured = measure_step("gemm", platform="cpu", steps=3, settings=small)
    >>> measured.devices, measured.platform, len(measured.durations_s)
    (1, 'cpu', 3)
    """
    from hespas.base.fields import overridden
    from hespas.base.suggest import choice
    from hespas.compile.options import CompileOptions
    from hespas.evidence.measure import measured
    from hespas.evidence.measure.measured import MeasureOptions, Platform
    from hespas.prediction.options import CompileChoice, PredictOptions

    check_kind(workload, (str, Path), "a program's file or a model", "give one of these")
    how = MeasureOptions(
        platform=choice(platform, Platform, subject="the platform"),
        steps=steps,
        warm_up=warm_up,
        coordinator=coordinator,
        num_processes=num_processes,
        process_id=process_id,
        time_limit_s=time_limit_s,
    )
    base = PredictOptions(compile=CompileChoice(options=CompileOptions(flags=xla_flags or {})))
    options = overridden(base, {**overrides, "file": workload, "devices": devices})
    return measured.measure_step(options, how)


def run_study(
    what: Study | Mapping[str, object] | str | Path,
    directory: str | Path,
    *,
    executor: str = "local",
    scheduler: str | None = None,
    workers: int | None = None,
    time_limit_s: float = 1800.0,
) -> StudyAnswer:
    """Run or resume a study, as ``hespas study run`` does.

    ``what`` is a study, the keys of one, or its YAML file; its results live in ``directory``.
    ``executor`` is ``local``, ``workers`` processes of this machine at a time, or ``dask``, on the
    cluster of ``scheduler``. ``time_limit_s`` is how long one prediction may take. What it returns
    has the rows in the order of the goal, ``table()``, ``to_frame()`` and ``plot()``. Raises what
    `hespas.study.run.studied` raises.

    >>> import tempfile
    >>> compared = run_study({"model": "gemm", "node": ["A100_SXM_40GB", "H100_80GB"],
    ...                       "fidelity": "exported"}, tempfile.mkdtemp(), workers=1)
    >>> [row["candidate.node"] for row in compared.table()]
    ['H100_80GB', 'A100_SXM_40GB']
    """
    from hespas.base.suggest import choice
    from hespas.report.plot import study_answer_of
    from hespas.study.executor import ExecutorOptions, Place
    from hespas.study.run import studied
    from hespas.study.study import Study, read_study, study_of

    check_kind(what, (Study, Mapping, str, Path), "a study", "give its keys or its file")
    match what:
        case Study():
            chosen = what
        case str() | Path():
            chosen = read_study(Path(what))
        case _:
            chosen = study_of(what)
    options = ExecutorOptions(
        executor=choice(executor, Place, subject="the executor"),
        scheduler=scheduler,
        workers=workers,
        time_limit_s=time_limit_s,
    )
    return study_answer_of(studied(chosen, Path(directory), executor=options))
