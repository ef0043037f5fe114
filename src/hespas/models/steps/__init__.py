"""The steps of models in JAX; `hespas.models` loads without them.

``build`` of a module makes a step of settings: `training` and `serving` those of language models,
of a `transformer` whose `layers` have `attention` (with `context`, `latent` and a `cache`), states
(`recurrent`), a dense part (`layer`) and experts (`routing`); `arrays` those of
`hespas.models.network`s; `resnet` and `alone` their own.
"""
