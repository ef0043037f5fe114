"""Predict one step of a program on four A100s, and show where the time goes."""

import hespas

prediction = hespas.predict(
    "examples/attention_block.mlir",
    node="A100_SXM_40GB",
    system="A100_SXM_40GB_4GPU",
    fidelity="exported",  # not compiled first, so that the stages below are the same
)

print(f"step time              {prediction.step_time_s * 1e6:6.2f} us")
print(f"  compute              {prediction.compute_s * 1e6:6.2f} us")
print(f"  exposed communication{prediction.exposed_communication_s * 1e6:6.2f} us")

# Estimates of the stages are values as well; run them one by one to look inside.
program = hespas.stages.load("examples/attention_block.mlir")
estimates = hespas.stages.estimate(hespas.stages.split(program), "A100_SXM_40GB")
for name, operation in sorted(estimates.total.per_op.items()):
    print(f"  {name:<23}{operation.time_s * 1e6:6.2f} us")

print("assumed:")
for assumption in prediction.assumptions:
    print(f"  {assumption.partition(':')[0]}")
