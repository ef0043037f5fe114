module {
  func.func public @main(%arg0: tensor<2x1024x128xbf16>) -> (tensor<1024x2x128xbf16>) {
    %0 = "stablehlo.transpose"(%arg0) {permutation = array<i64: 1, 0, 2>} : (tensor<2x1024x128xbf16>) -> tensor<1024x2x128xbf16>
    return %0 : tensor<1024x2x128xbf16>
  }
}
