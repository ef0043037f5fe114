"""hespas' own network model: streams of transfers that share links max-min fairly."""
