module {
  func.func public @main(%arg0: tensor<2x1024x1024xbf16>) -> (tensor<2x1024x1024xbf16>) {
    %0 = "stablehlo.exponential"(%arg0) : (tensor<2x1024x1024xbf16>) -> tensor<2x1024x1024xbf16>
    return %0 : tensor<2x1024x1024xbf16>
  }
}
