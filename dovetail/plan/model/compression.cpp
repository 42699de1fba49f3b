#include "dovetail/plan/model/compression.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/median.h"
#include "dovetail/base/trace.h"
#include "dovetail/mx/dequantize.h"
#include "dovetail/mx/quantize.h"

namespace dovetail::plan {
namespace {

// Row length of the matrix that represents a storage without columns. Quantization splits work over
// threads by rows.
constexpr int64_t kRow = 64 * kBlock;

std::byte* unconst(const std::byte* bytes) { return const_cast<std::byte*>(bytes); }

/// Part of a storage as a matrix, with its codes and scales.
struct Piece {
  at::Tensor values;
  mx::MXTensor packed;
};

std::vector<Piece> pieces(const PackedForm& form, std::byte* values, int64_t elements,
                          std::byte* packed) {
  std::vector<Piece> out;
  std::byte* codes = packed;
  std::byte* scales = packed + elements;
  const mx::Orientation orientation =
      form.columns > 0 ? mx::Orientation::kColumn : mx::Orientation::kRow;
  const auto add = [&](std::array<int64_t, 2> sizes) {
    const int64_t count = sizes[0] * sizes[1];
    if (count == 0) return;
    const auto of_scales = mx::scale_sizes(sizes, orientation);
    out.push_back({at::from_blob(values, sizes, at::TensorOptions(form.dtype)),
                   {at::from_blob(codes, sizes, at::TensorOptions(at::kByte)),
                    at::from_blob(scales, of_scales, at::TensorOptions(at::kByte)), form.format,
                    orientation}});
    values += count * static_cast<int64_t>(c10::elementSize(form.dtype));
    codes += count;
    scales += of_scales[0] * of_scales[1];
  };
  if (form.columns > 0) {
    DOVETAIL_CHECK(elements % (kBlock * form.columns) == 0, "{} elements in {} columns", elements,
                   form.columns);
    add({elements / form.columns, form.columns});
  } else {
    add({elements / kRow, kRow});
    add({1, elements % kRow});
  }
  return out;
}

}  // namespace

std::string name(const PackedForm& form) {
  return fmt::format("{}.{}.{}{}", mx::name(form.format), mx::name(form.scale_mode),
                     form.columns > 0 ? fmt::format("columns{}.", form.columns) : "",
                     form.dtype == at::kFloat ? "float32" : "bfloat16");
}

int64_t packed_bytes(int64_t elements) { return elements + (elements + kBlock - 1) / kBlock; }

void pack(const PackedForm& form, const std::byte* from, int64_t elements, std::byte* to) {
  for (const Piece& piece : pieces(form, unconst(from), elements, to)) {
    mx::Quantized out;
    (form.columns > 0 ? out.column : out.row) = piece.packed;
    mx::quantize_into(piece.values,
                      {.format = form.format,
                       .scale_mode = form.scale_mode,
                       .count = false,
                       .copies = form.columns > 0 ? mx::Copies::kColumn : mx::Copies::kRow},
                      out);
  }
}

void unpack(const PackedForm& form, const std::byte* from, int64_t elements, std::byte* to) {
  for (const Piece& piece : pieces(form, to, elements, unconst(from)))
    mx::dequantize_into(piece.packed, piece.values);
}

Codec codec_of(const PackedForm& form, double max_error) {
  const auto size = static_cast<double>(c10::elementSize(form.dtype));
  return {.name = name(form) + (max_error == 0 ? ".same_codes" : ""),
          .ratio = (1 + 1.0 / kBlock) / size,
          .max_error = max_error};
}

void measure(const PackedForm& form, int64_t bytes, int rounds, Codec& codec) {
  DOVETAIL_CHECK(rounds > 0 && bytes > 0, "nothing to measure");
  const auto size = static_cast<int64_t>(c10::elementSize(form.dtype));
  const int64_t unit = kBlock * std::max<int64_t>(form.columns, 1);
  const int64_t elements = (bytes / size + unit - 1) / unit * unit;
  const at::Tensor values = at::randn({elements}).to(form.dtype);
  const at::Tensor packed = at::empty({packed_bytes(elements)}, at::kByte);
  auto* const of_values = static_cast<std::byte*>(values.mutable_data_ptr());
  auto* const of_packed = static_cast<std::byte*>(packed.mutable_data_ptr());
  const auto seconds = [](auto&& work) {
    const double start_s = now_seconds();
    work();
    return now_seconds() - start_s;
  };
  std::vector<double> packing_s, unpacking_s;
  for (int round = -1; round < rounds; ++round) {  // round -1 touches the pages
    const double there_s = seconds([&] { pack(form, of_values, elements, of_packed); });
    const double back_s = seconds([&] { unpack(form, of_packed, elements, of_values); });
    if (round < 0) continue;
    packing_s.push_back(there_s);
    unpacking_s.push_back(back_s);
  }
  codec.encode_bytes_per_s = static_cast<double>(elements * size) / median(packing_s);
  codec.decode_bytes_per_s = static_cast<double>(elements * size) / median(unpacking_s);
}

}  // namespace dovetail::plan
