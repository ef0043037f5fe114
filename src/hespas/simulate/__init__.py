"""From a task graph and a system to a timeline."""
