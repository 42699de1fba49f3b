#pragma once

#include <string>

#include "dovetail/io/safetensors.h"
#include "dovetail/mx/tensor.h"

namespace dovetail::io {

/// Content of a safetensors file.
struct SafetensorsContent {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Adds a tensor in a microscaling format to a safetensors file, as two U8 tensors and metadata.
/// "<name>.codes" has one byte per code, or packed codes (mx::pack_codes). Packed FP6 takes 3/4
/// byte per code, FP4 half a byte. "<name>.scales" has the scales. The metadata of "<name>" is
/// {"format": "e2m1", "orientation": "row", "shape": [3, 64]}.
void put_mx_tensor(const std::string& name, const mx::MXTensor& x, SafetensorsContent& content);

/// Reads the tensor back. Throws UserError with file and reason if it is absent, or if its parts do
/// not fit.
mx::MXTensor read_mx_tensor(const SafetensorsFile& file, const std::string& name);

}  // namespace dovetail::io
