"""Run other projects' programs, one adapter a file.

An adapter writes its program's inputs, runs it in a separate process and reads its output. `price`
defines the results of its adapters and never imports them: `hespas.price.methods` names the modules
of estimation methods as text. The command line calls `astra_sim`, `sst` and `htsim`.

* Simulators of arrays time matrix products, as `hespas.price.systolic.ProductTimer`:
  SCALE-Sim and ZigZag (`packages`), `cocossim` and `onnxim`. `tool` runs them; `built_program`
  calls user-built programs, in the form that the configuration describes.
* Profilers time whole regions on this machine: `xla` and `iree`; `profiling` turns durations of
  runs into estimates.
* Simulators of networks time a whole job: each is a `network_program.Backend`, which returns a
  `result.ExternalResult`. `astra_sim` reads traces, `sst` and `htsim` play
  messages; `network_program` has their shared code.
"""
