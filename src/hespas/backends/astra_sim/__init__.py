"""Run an installed ASTRA-sim: `run` calls it, `system_files` writes the system that it reads."""
