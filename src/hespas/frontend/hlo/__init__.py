"""HLO modules, optimised and scheduled or not, to `Program`: docs/reference/hlo.md."""
