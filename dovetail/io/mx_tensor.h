#pragma once

#include <string>

#include "dovetail/io/safetensors.h"
#include "dovetail/mx/tensor.h"

namespace dovetail {

/// What a safetensors file holds.
struct SafetensorsContent {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// A tensor in a microscaling format as part of a safetensors file: U8 tensors "<name>.codes" (one
/// byte for each code, or packed as mx::pack_codes says: FP6 in three quarters, FP4 in half of
/// that) and "<name>.scales", and metadata
/// "<name>":
/// {"format": "e2m1", "orientation": "row", "shape": [3, 64]}.
void put_mx_tensor(const std::string& name, const mx::MXTensor& x, SafetensorsContent& content);

/// The same back. Throws UserError with file and reason when it is not there, or its parts do not
/// fit.
mx::MXTensor read_mx_tensor(const SafetensorsFile& file, const std::string& name);

}  // namespace dovetail
