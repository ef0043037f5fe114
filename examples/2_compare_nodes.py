"""Compare three generations of GPUs: how much faster a step is, and how much it communicates."""

import hespas

program = hespas.stages.load("examples/llama3_100m_fsdp4.mlir")
nodes = ("A100_SXM_40GB", "H100_80GB", "B200_180GB")
predictions = {node: hespas.predict(program, node, f"{node}_4GPU") for node in nodes}

first_s = predictions[nodes[0]].step_time_s
print("node            step, ms  speed-up  exposed communication")
for node, prediction in predictions.items():
    exposed = prediction.exposed_communication_s / prediction.step_time_s
    speed_up = first_s / prediction.step_time_s
    print(f"{node:<15} {prediction.step_time_s * 1e3:8.1f} {speed_up:9.2f} {exposed:8.1%}")
