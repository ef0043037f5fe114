module {
  func.func public @main(%arg0: tensor<2x1024x1024xbf16>, %arg1: tensor<2x1024x128xbf16>) -> (tensor<2x1024x128xbf16>) {
    %0 = "stablehlo.dot_general"(%arg0, %arg1) {dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<2x1024x1024xbf16>, tensor<2x1024x128xbf16>) -> tensor<2x1024x128xbf16>
    return %0 : tensor<2x1024x128xbf16>
  }
}
