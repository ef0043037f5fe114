module {
  func.func public @main(%arg0: tensor<1024x2x128xbf16>) -> (tensor<1024x256xbf16>) {
    %0 = "stablehlo.reshape"(%arg0) : (tensor<1024x2x128xbf16>) -> tensor<1024x256xbf16>
    return %0 : tensor<1024x256xbf16>
  }
}
