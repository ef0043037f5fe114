"""StableHLO to the optimised, scheduled HLO of accelerators that are not there."""
