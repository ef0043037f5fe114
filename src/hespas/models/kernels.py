"""The kernels of fused attention, by name."""

from __future__ import annotations

from hespas.base.frozen import frozen


@frozen
class Kernels:
    """A kind of fused attention.

    ``platform`` is what programs with them are lowered for, by JAX's name. Sequences are a multiple
    of ``tokens`` long; ``types`` are those that are computed in. ``kernel`` is the implementation
    where the module has several.
    """

    title: str
    module: str
    platform: str
    types: tuple[str, ...] = ("bf16", "f16")
    tokens: int = 1
    kernel: str = ""

    def why_not(self, *, dtype: str, sequence: int, devices: int) -> str:
        """Return why they cannot compute a sequence, or "".

        A sequence over several devices is two blocks on each of them.
        """
        if dtype not in self.types:
            bits = "16 bits" if self.types == ("bf16", "f16") else " or ".join(self.types)
            return f"{self.title} computes in {bits}, and dtype is {dtype}"
        blocks = 1 if devices == 1 else 2 * devices
        if self.tokens > 1 and sequence % (blocks * self.tokens):
            place = "" if blocks == 1 else f" in each of {blocks} blocks"
            return f"{self.title} needs multiples of {self.tokens} tokens{place}, not {sequence}"
        return ""


FUSED = {
    "cudnn": Kernels(
        title="cuDNN's fused attention", module="hespas.xla.attention", platform="cuda"
    ),
    "flash": Kernels(title="FlashAttention", module="hespas.xla.flash", platform="cuda"),
    "flash2": Kernels(
        title="FlashAttention-2",
        module="hespas.xla.flash",
        platform="cuda",
        kernel="flash_attention_2",
    ),
    "flash_triton": Kernels(
        title="FlashAttention in Triton",
        module="hespas.xla.flash",
        platform="cuda",
        kernel="flash_attention_triton",
    ),
    "flashmla": Kernels(title="FlashMLA", module="hespas.xla.flash", platform="cuda"),
    "splash": Kernels(
        title="splash attention",
        module="hespas.xla.splash",
        platform="tpu",
        types=("bf16", "f32"),
        tokens=128,
    ),
}


def platform_of(attention: str) -> str | None:
    """Return the platform to lower for, or None for any."""
    return FUSED[attention].platform if attention in FUSED else None
