"""One small function for each family of operations, its derivation beside its formula."""
