"""The model zoo: training and inference steps in JAX.

`catalogue` is the public face: `catalogue.models` lists the models by name, with the settings of
each, `catalogue.model_named` finds one, and its `model.Model.step` gives the jitted function with
abstract arguments, sharded over a mesh (`model.parse_mesh`).
`hespas.sources.function.export_model` turns it into StableHLO. Language models are settings,
`language.LanguageModel`, listed in `families` or read from a `configuration`; `weights` names their
weights, and what layers keep. Encoders, diffusion models and recommenders are
`network_model.Network`s, functions over the operations of `network`: those of `encoders`,
`diffusion`, `unet` and `recommender`, read by `network_readers`. `flops` has what a step needs.
All of JAX is in `steps`.
"""
