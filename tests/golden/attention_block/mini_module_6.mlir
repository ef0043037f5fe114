module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<1024x1024xbf16>) -> (tensor<1024x1024xbf16>) {
    %0 = "stablehlo.all_reduce"(%arg0) ({
    ^bb0(%b1_0: tensor<bf16>, %b1_1: tensor<bf16>):
      %2 = "stablehlo.add"(%b1_0, %b1_1) : (tensor<bf16>, tensor<bf16>) -> tensor<bf16>
      "stablehlo.return"(%2) : (tensor<bf16>) -> ()
    }) {channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids} : (tensor<1024x1024xbf16>) -> tensor<1024x1024xbf16>
    return %0 : tensor<1024x1024xbf16>
  }
}
