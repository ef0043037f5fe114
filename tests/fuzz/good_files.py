"""Small files that hespas reads, of many kinds of what they may hold."""

# ruff: noqa: E501 - programs stand as they are printed

LOOPS = """module @step attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%a: tensor<64x32xbf16>, %b: tensor<32x128xf32> {jax.buffer_donor = true}) -> (tensor<64x128xf32>, tensor<i32>) {
    %start = stablehlo.constant dense<0> : tensor<i32>
    %limit = stablehlo.constant dense<10> : tensor<i32>
    %step = stablehlo.constant dense<1> : tensor<i32>
    %zero = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %r:2 = stablehlo.while(%i = %start, %x = %b) : tensor<i32>, tensor<32x128xf32>
    cond {
      %c = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %next = stablehlo.add %i, %step : tensor<i32>
      %y = func.call @scaled(%x) : (tensor<32x128xf32>) -> tensor<32x128xf32>
      stablehlo.return %next, %y : tensor<i32>, tensor<32x128xf32>
    }
    %f = stablehlo.convert %a : (tensor<64x32xbf16>) -> tensor<64x32xf32>
    %d = stablehlo.dot_general %f, %r#1, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x128xf32>) -> tensor<64x128xf32>
    %g = "stablehlo.all_gather"(%d) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> : (tensor<64x128xf32>) -> tensor<128x128xf32>
    %s = "stablehlo.slice"(%g) <{start_indices = array<i64: 0, 0>, limit_indices = array<i64: 64, 128>, strides = array<i64: 1, 1>}> : (tensor<128x128xf32>) -> tensor<64x128xf32>
    %m = stablehlo.reduce(%s init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<64x128xf32>, tensor<f32>) -> tensor<64xf32>
    %w = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<64xf32>) -> tensor<64x128xf32>
    %k = "stablehlo.case"(%r#0) ({
      %one = stablehlo.tanh %w : tensor<64x128xf32>
      stablehlo.return %one : tensor<64x128xf32>
    }, {
      stablehlo.return %s : tensor<64x128xf32>
    }) : (tensor<i32>) -> tensor<64x128xf32>
    return %k, %r#0 : tensor<64x128xf32>, tensor<i32>
  }
  func.func private @scaled(%x: tensor<32x128xf32>) -> tensor<32x128xf32> {
    %y = stablehlo.multiply %x, %x : tensor<32x128xf32>
    return %y : tensor<32x128xf32>
  }
}
"""
SHARDED = """module @step attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%a: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<64x32xf32> {
    %r = stablehlo.tanh %a : tensor<64x32xf32>
    return %r : tensor<64x32xf32>
  }
}
"""
HLO = """HloModule step, is_scheduled=true, num_partitions=4, entry_computation_layout={(f32[4096,128]{1,0}, f32[128,512]{1,0})->f32[4096,512]{1,0}}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused (p: f32[4096,512]) -> f32[4096,512] {
  %p = f32[4096,512]{1,0} parameter(0)
  ROOT %n = f32[4096,512]{1,0} negate(%p)
}

%body (t: (s32[], f32[4096,512])) -> (s32[], f32[4096,512]) {
  %t = (s32[], f32[4096,512]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[4096,512]{1,0} get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %f.2 = f32[4096,512]{1,0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %out = (s32[], f32[4096,512]{1,0}) tuple(%next, %f.2)
}

%cond (t: (s32[], f32[4096,512])) -> pred[] {
  %t = (s32[], f32[4096,512]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %limit = s32[] constant(7)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

ENTRY %main (a: f32[4096,128], b: f32[128,512]) -> f32[4096,512] {
  %a = f32[4096,128]{1,0} parameter(0), metadata={op_name="a"}
  %b = f32[128,512]{1,0} parameter(1)
  %d = f32[4096,512]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/dot_general" source_file="step.py" source_line=7}
  %f.1 = f32[4096,512]{1,0} fusion(%d), kind=kLoop, calls=%fused
  %start = f32[4096,512]{1,0} all-reduce-start(%f.1), channel_id=1, replica_groups=[2,2]<=[4], use_global_device_ids=true, to_apply=%add
  %done = f32[4096,512]{1,0} all-reduce-done(%start)
  %zero = s32[] constant(0)
  %in = (s32[], f32[4096,512]{1,0}) tuple(%zero, %done)
  %loop = (s32[], f32[4096,512]{1,0}) while(%in), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"7"}}
  %x = f32[4096,512]{1,0} get-tuple-element(%loop), index=1
  ROOT %p = f32[4096,512]{1,0} collective-permute(%x), channel_id=2, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
}
"""
PTX = """.version 8.0
.target sm_90a
.address_size 64

.visible .entry negated(
  .param .u64 p0,
  .param .u64 p1
)
.reqntid 128, 1, 1
{
  .reg .b32 %r<8>;
  .reg .b64 %rd<8>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [p0];
  ld.param.u64 %rd2, [p1];
  cvta.to.global.u64 %rd3, %rd1;
  cvta.to.global.u64 %rd4, %rd2;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %tid.x;
  shl.b32 %r3, %r1, 7;
  or.b32 %r4, %r3, %r2;
  mov.u32 %r7, 0;
$again:
  mul.wide.u32 %rd5, %r4, 4;
  add.s64 %rd6, %rd3, %rd5;
  ld.global.b32 %r5, [%rd6];
  neg.s32 %r6, %r5;
  add.s64 %rd7, %rd4, %rd5;
  st.global.b32 [%rd7], %r6;
  add.s32 %r7, %r7, 1;
  setp.lt.s32 %p1, %r7, 16;
  @%p1 bra $again;
  ret;
}
"""
CLUSTER = """node_types:
  old: {compute_scale: 1.5}
devices:
  - {devices: "0-1, 3", node_type: old}
  - {devices: [1], compute_scale: 2, delay_s: 0.001}
jitter: {seed: 7, sigma: 0.02, distribution: uniform}
"""
SWAP = """<algo name="swap" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="0">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="1">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="-1" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="1">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="-1" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""
STUDY = """model: step.mlir
cluster: [4xA100_SXM_40GB]
algorithm: [ring, direct]
branch_weights: "0.25,0.75"
fidelity: exported
where: memory.fits and cluster.devices <= 8
goal: {minimise: usd_per_step}
budget: {evaluations: 2, minutes: 0.1}
title: Two ways
prices: prices.csv
"""
PRICES = """part,usd_per_device_hour,source
A100_SXM_40GB,1.5,a contract
H100_80GB,2.5,a list
"""
FLAGS = """# as a recipe prints them
export XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true \\
  --xla_gpu_all_reduce_combine_threshold_bytes=33554432 --xla_gpu_enable_triton_gemm=false"
"""
SCHEDULE = """# stage: passes
0: F0 F1 B0 B1
1: F0 B0 F1 B1
"""


def _gpu(number: int) -> str:
    return f"""    <pci busid="0000:0{number}:00.0" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="{number}" sm="80" rank="{number}" gdr="1">
        <nvlink target="0000:c4:00.0" count="12" tclass="0x068000"/>
      </gpu>
    </pci>
"""


MACHINE = (
    '<system version="1">\n  <cpu numaid="0" arch="x86_64">\n'
    + "".join(map(_gpu, range(4)))
    + "  </cpu>\n</system>\n"
)
"""What NCCL writes of a machine of four devices."""

BRIDGES = """<topology version="2.0"><object type="Machine"><object type="Package">
<object type="Bridge" bridge_type="1-1" pci_busid="0000:40:01.1" pci_link_speed="31.507692">
<object type="PCIDev" pci_busid="0000:41:00.0" pci_type="0302 [10de]" pci_link_speed="31.5"/>
<object type="PCIDev" pci_busid="0000:42:00.0" pci_type="0302 [10de]" pci_link_speed="31.5"/>
<object type="PCIDev" pci_busid="0000:43:00.0" pci_type="1200 [1002]" pci_link_speed="31.5"/>
<object type="PCIDev" pci_busid="0000:44:00.0" pci_type="1200 [1002]" pci_link_speed="31.5"/>
</object></object></object></topology>
"""
"""What hwloc writes of another one."""

INFRAGRAPH = {
    "name": "four devices",
    "devices": [
        {
            "name": "server",
            "components": [
                {"name": "gpu", "count": 2, "choice": "xpu"},
                {"name": "nic", "count": 1, "choice": "nic"},
            ],
            "links": [{"name": "lanes", "physical": {"bandwidth": {"gigabytes_per_second": 25}}}],
            "edges": [
                {
                    "ep1": {"component": "gpu[0:2]"},
                    "ep2": {"component": "nic"},
                    "scheme": "many2many",
                    "link": "lanes",
                }
            ],
        }
    ],
    "links": [{"name": "cable", "physical": {"bandwidth": {"gigabits_per_second": 100}}}],
    "instances": [{"name": "host", "device": "server", "count": 2}],
    "edges": [
        {
            "ep1": {"instance": "host[0]", "component": "nic[0]"},
            "ep2": {"instance": "host[1]", "component": "nic[0]"},
            "scheme": "one2one",
            "link": "cable",
        }
    ],
}
