// One attention block of a tensor-parallel layer on 4 devices: each holds 2 of 8 heads, and the
// output projections of all devices are added up.
module @attention_block attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%q: tensor<2x1024x128xbf16>, %k: tensor<2x1024x128xbf16>, %v: tensor<2x1024x128xbf16>, %w: tensor<256x1024xbf16>) -> tensor<1024x1024xbf16> {
    %scores = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x1024x128xbf16>, tensor<2x1024x128xbf16>) -> tensor<2x1024x1024xbf16>
    %weights = stablehlo.exponential %scores : tensor<2x1024x1024xbf16>
    %mixed = stablehlo.dot_general %weights, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x1024x1024xbf16>, tensor<2x1024x128xbf16>) -> tensor<2x1024x128xbf16>
    %turned = stablehlo.transpose %mixed, dims = [1, 0, 2] : (tensor<2x1024x128xbf16>) -> tensor<1024x2x128xbf16>
    %flat = stablehlo.reshape %turned : (tensor<1024x2x128xbf16>) -> tensor<1024x256xbf16>
    %partial = stablehlo.dot_general %flat, %w, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<1024x256xbf16>, tensor<256x1024xbf16>) -> tensor<1024x1024xbf16>
    %sum = "stablehlo.all_reduce"(%partial) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %c = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %c : tensor<bf16>
    }) : (tensor<1024x1024xbf16>) -> tensor<1024x1024xbf16>
    return %sum : tensor<1024x1024xbf16>
  }
}
