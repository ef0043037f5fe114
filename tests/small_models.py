"""Settings of small language models, as text."""

from __future__ import annotations

SMALL = {
    "embedding": "64",
    "heads": "4",
    "kv_heads": "2",
    "head_size": "16",
    "layers": "4",
    "mlp": "128",
    "vocabulary": "256",
}
LATENT = {
    "kv_heads": "4",
    "query_rank": "32",
    "kv_rank": "16",
    "rope_size": "8",
    "value_size": "16",
}
EXPERTS = {"experts": "8", "expert_mlp": "64"}
