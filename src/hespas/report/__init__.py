"""Results as JSON and text, one module for each kind of result.

Each function takes a result (`hespas.prediction.Prediction`, a graph's estimate, a
`hespas.simulate.timeline.Timeline`, memory use, presets) and returns a documented JSON object
(``*_json``) or lines for people (``*_text``). `regions.write_region_files` writes the files of a
split. `layers` divides a step among the user's modules, phases and `kinds` of kernels. Nothing is
computed here that a result does not hold, except by `kernels.kernel_rows`, which analyses each
kernel of a compiled program, and `operators.count_operators`.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "algorithm": ("algorithm_json", "algorithm_text"),
    "assumptions": ("assumption_lines", "group_text", "grouped_assumptions"),
    "communication": ("communication_rows",),
    "compare": (
        "Comparison",
        "RunResult",
        "TimeRow",
        "compared",
        "comparison_text",
        "read_report",
        "read_result",
        "signed_time",
        "with_limit",
    ),
    "estimate": ("estimate_summary", "module_stats"),
    "explain": ("explain_rows", "explain_text", "main_change_lines"),
    "goodput": ("goodput_report",),
    "headline": ("bound_parts", "energy_shares", "headline", "waiting_s"),
    "hardware": ("hardware_json", "hardware_text", "preset_details"),
    "kernels": ("kernel_table", "kernels_json", "kernels_text"),
    "layers": ("NO_NAME_ROW", "breakdown", "kind_rows", "layer_rows", "phase_rows"),
    "memory": ("memory_json", "memory_text"),
    "operators": ("count_operators",),
    "regions": ("file_of_region", "region_descriptions", "write_region_files"),
    "step_details": ("detailed", "full_report"),
    "run": (
        "SECTIONS",
        "report_without_tables",
        "run_json",
        "run_report",
        "run_summary",
        "run_text",
    ),
    "tables": ("summary_html", "summary_text", "table_rows"),
    "schema": (
        "CommunicationRow",
        "KernelTimeRow",
        "Peaks",
        "PipelineReport",
        "RunReport",
        "StageRow",
        "run_schema",
    ),
    "simulation": ("external_text", "simulation_text"),
    "pipeline": ("pipeline_report",),
    "timeline.pipeline": ("pipeline_chart",),
    "timeline.chart": ("Chart",),
    "timeline.details": ("program_details",),
    "timeline.step": ("step_chart",),
    "timeline.write": ("write_chart",),
    "utilisation": ("peak_text",),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
