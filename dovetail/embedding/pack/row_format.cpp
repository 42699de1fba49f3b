#include "dovetail/embedding/pack/row_format.h"

#include <array>

#include "dovetail/base/schema/enum_names.h"
#include "dovetail/mx/codec.h"

namespace dovetail::embedding {

namespace {

constexpr std::array<std::string_view, 3> kDtypeNames = {"fp32", "bf16", "mxfp8"};

}  // namespace

std::string_view name(RowDtype dtype) { return kDtypeNames[static_cast<size_t>(dtype)]; }

RowDtype parse_row_dtype(std::string_view text) {
  return parse_enum<RowDtype>("embedding", "row_dtype", text, kDtypeNames);
}

at::ScalarType stored_type(RowDtype dtype) {
  constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kByte};
  return kTypes[static_cast<size_t>(dtype)];
}

int64_t stored_width(RowDtype dtype, int64_t dim) {
  return dtype == RowDtype::kMXFP8 ? dim + (dim + mx::kBlock - 1) / mx::kBlock : dim;
}

int64_t row_bytes(RowDtype dtype, int64_t dim) {
  return stored_width(dtype, dim) * static_cast<int64_t>(c10::elementSize(stored_type(dtype)));
}

}  // namespace dovetail::embedding
