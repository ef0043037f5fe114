"""Targets of custom calls that one part of hespas makes and another one prices."""

from __future__ import annotations

CONVOLUTION_FORWARD = "__cudnn$convForward"
CONVOLUTION_BACKWARD_INPUT = "__cudnn$convBackwardInput"
CONVOLUTION_BACKWARD_FILTER = "__cudnn$convBackwardFilter"
CONVOLUTION_BIAS_ACTIVATION = "__cudnn$convBiasActivationForward"
"""cuDNN's convolutions, as XLA calls them: the last one adds and applies an activation."""

FLASH_FORWARD, FLASH_BACKWARD = "__flash_attention$forward", "__flash_attention$backward"
"""FlashAttention: `hespas.xla.flash` says which buffers the two calls have."""

FLASH_MLA = "__flash_mla$decode"
"""FlashMLA: new tokens over a cache of latent vectors (`hespas.xla.flash_mla`)."""

MOSAIC = "tpu_custom_call"
"""A TPU's kernel that its author wrote, in Pallas."""

TOP_K, TOP_K_OF_GPUS = "TopK", "__gpu$TopK"
"""The largest elements of each row and where they were, as XLA's compilers for GPUs and TPUs."""
