"""Other people's programs, each behind an adapter of one file.

An adapter writes what its program reads, runs it in a process of its own and reads what it says.
`price` and `simulate` define what it gives back and never import it: `hespas.price.methods` names
the modules of estimation methods as text, the command line calls `astra_sim`, `sst` and `htsim`.

* Simulators of arrays time matrix products, as `hespas.price.systolic.ProductTimer`:
  SCALE-Sim and ZigZag (`packages`), `cocossim` and `onnxim`. `tool` runs them; `built_program`
  calls those that somebody built, in the manner that the configuration describes.
* Profilers time whole regions on this machine: `xla` and `iree`; `profiling` turns durations of
  runs into estimates.
* Simulators of networks time a whole job: each is a `network_program.Backend`, which gives a
  `hespas.simulate.timeline.ExternalResult`. `astra_sim` reads traces, `sst` and `htsim` play
  messages; `network_program` is what they share.
"""
