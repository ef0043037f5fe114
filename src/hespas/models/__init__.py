"""The model zoo: training and inference steps written in JAX, for meshes of any size.

`catalogue` is the public face: `catalogue.models` lists the models by name, with the settings of
each, `catalogue.model_named` finds one, and its `model.Model.step` gives the jitted function with
abstract arguments, sharded over a mesh (`model.parse_mesh`).
`hespas.sources.function.export_model` turns it into StableHLO. A family is a module with a function
that builds a step: `resnet` (with `resnet_layers`), `gemm`, `moe`. Language models are settings,
`language.LanguageModel`, listed in `families` and made of shared pieces: `transformer` puts
together `attention` (with `context` and `latent`), `cache`, `feed_forward`, `routing` and `norms`;
`weights` names their weights, and what layers keep; `kernels` names those of fused attention;
`training` and `serving` make their steps. Encoders, diffusion models and recommenders are
`network_model.Network`s, functions over the operations of `network` that `arrays` computes: those
of `encoders`, `diffusion`, `unet` and `recommender` (with `sparse`), read by `network_readers`.
`flops` has what a step needs. Importing `catalogue`,
`families`, `kernels`, `language`, `model`, `weights` or `flops` does not import JAX.
"""
