"""MaxText's own training steps, lowered in a process of an interpreter that has MaxText."""
