#pragma once

#include <string>

#include "dovetail/io/safetensors.h"
#include "dovetail/mx/tensor.h"

namespace dovetail::io {

/// Content of a safetensors file, in the form that write_safetensors takes.
struct SafetensorsContent {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Adds the microscaling tensor `x` to `content`. A microscaling (MX) tensor has one small code per
/// element and one scale byte per block of elements. It becomes two U8 tensors and one metadata
/// entry:
///
/// - tensor "<name>.codes": the codes as mx::pack_codes packs them. An 8-bit code takes one byte,
///   FP6 takes 3/4 byte and FP4 half a byte.
/// - tensor "<name>.scales": the scale bytes
/// - metadata "<name>": JSON text with the number format of the codes, the orientation of the
///   blocks and the shape. Example: {"format": "e2m1", "orientation": "row", "shape": [3, 64]}.
void put_mx_tensor(const std::string& name, const mx::MXTensor& x, SafetensorsContent& content);

/// Reads a tensor that put_mx_tensor added under `name`. Throws UserError, with file and reason, if
/// the file has no such tensor. Also throws if its codes, scales and metadata do not fit together.
mx::MXTensor read_mx_tensor(const SafetensorsFile& file, const std::string& name);

}  // namespace dovetail::io
