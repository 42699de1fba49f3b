#include "dovetail/mx/tensor.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::mx {

namespace {

constexpr std::array<std::string_view, 3> kOrientationNames = {"row", "column", "square"};

int64_t blocks(int64_t size) { return (size + kBlock - 1) / kBlock; }

int64_t packed_size(int64_t count, const ElementSpec& spec) { return (count * spec.bits + 7) / 8; }

void check_bytes(const char* what, const at::Tensor& x) {
  user_check(x.defined() && x.scalar_type() == at::kByte, "mx: {} must be uint8, but {}", what,
             x.defined() ? fmt::format("are {}", c10::toString(x.scalar_type())) : "are undefined");
}

}  // namespace

std::string_view name(Orientation orientation) {
  return kOrientationNames[static_cast<size_t>(orientation)];
}

std::vector<int64_t> scale_sizes(at::IntArrayRef sizes, Orientation orientation) {
  user_check(!sizes.empty(), "mx: a scalar has no dimension to lay blocks along");
  auto result = sizes.vec();
  if (orientation == Orientation::kSquare) {
    user_check(sizes.size() == 2, "mx: blocks of 32 x 32 are for matrices, but the tensor is [{}]",
               fmt::join(sizes, ", "));
    return {blocks(sizes[0]), blocks(sizes[1])};
  }
  int64_t& along = orientation == Orientation::kRow ? result.back() : result.front();
  along = blocks(along);
  return result;
}

MXTensor::MXTensor(at::Tensor codes, at::Tensor scales, Format format, Orientation orientation)
    : codes_(std::move(codes)),
      scales_(std::move(scales)),
      format_(format),
      orientation_(orientation) {
  check_bytes("codes", codes_);
  check_bytes("scales", scales_);
  const auto expected = scale_sizes(codes_.sizes(), orientation);
  user_check(scales_.sizes() == at::IntArrayRef(expected),
             "mx: codes [{}] in {} blocks of 32 need scales [{}], but these are [{}]",
             fmt::join(codes_.sizes(), ", "), name(orientation), fmt::join(expected, ", "),
             fmt::join(scales_.sizes(), ", "));
  user_check(codes_.device() == scales_.device(), "mx: codes are on {} but scales on {}",
             codes_.device().str(), scales_.device().str());
  codes_ = codes_.contiguous();
  scales_ = scales_.contiguous();
}

int64_t MXTensor::packed_bytes() const {
  return defined() ? packed_size(codes_.numel(), element_spec(format_)) + scales_.numel() : 0;
}

at::Tensor swizzled_scales(const MXTensor& x) {
  constexpr int64_t kTileRows = 128, kTileBlocks = 4, kQuarter = 32;
  user_check(x.defined() && x.sizes().size() == 2 && x.orientation() != Orientation::kSquare,
             "mx: scales are swizzled of a row or column copy of a matrix");
  const at::Tensor scales = x.orientation() == Orientation::kRow ? x.scales() : x.scales().t();
  const auto up = [](int64_t size, int64_t to) { return (size + to - 1) / to * to; };
  const int64_t rows = up(scales.size(0), kTileRows), cols = up(scales.size(1), kTileBlocks);
  return at::constant_pad_nd(scales, {0, cols - scales.size(1), 0, rows - scales.size(0)})
      .view({rows / kTileRows, kTileRows / kQuarter, kQuarter, cols / kTileBlocks, kTileBlocks})
      .permute({0, 3, 2, 1, 4})
      .reshape({-1});
}

at::Tensor pack_codes(const at::Tensor& codes_in, Format format) {
  check_bytes("codes", codes_in);
  const ElementSpec& spec = element_spec(format);
  const at::Tensor codes = codes_in.contiguous().view({-1});
  if (spec.bits == 8) return codes.clone();
  const int64_t count = codes.numel(), group = spec.bits == 6 ? 4 : 2,
                group_bytes = group * spec.bits / 8;
  at::Tensor packed = at::empty({packed_size(count, spec)}, codes.options());
  const auto* from = codes.const_data_ptr<uint8_t>();
  auto* to = packed.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0, out = 0; i < count; i += group) {
    uint32_t word = 0;
    for (int64_t j = 0; j < std::min(group, count - i); ++j)
      word |= (from[i + j] & ((1u << spec.bits) - 1)) << (j * spec.bits);
    for (int64_t byte = 0; byte < group_bytes && out < packed.numel(); ++byte, word >>= 8)
      to[out++] = static_cast<uint8_t>(word);
  }
  return packed;
}

at::Tensor unpack_codes(const at::Tensor& packed_in, Format format, at::IntArrayRef sizes) {
  check_bytes("packed codes", packed_in);
  const ElementSpec& spec = element_spec(format);
  const at::Tensor packed = packed_in.contiguous().view({-1});
  int64_t count = 1;
  bool fits = true;
  for (const int64_t size : sizes)
    fits = fits && size >= 0 && !__builtin_mul_overflow(count, size, &count);
  // Checked before any memory of that size is allocated.
  fits = fits && count <= 8 * std::max<int64_t>(packed.numel(), 1);
  user_check(fits, "mx: [{}] are not the sizes of {} bytes of codes", fmt::join(sizes, ", "),
             packed.numel());
  user_check(packed.numel() == packed_size(count, spec),
             "mx: [{}] codes of {} take {} bytes, but there are {}", fmt::join(sizes, ", "),
             name(format), packed_size(count, spec), packed.numel());
  at::Tensor codes = at::empty(sizes, packed.options());
  if (spec.bits == 8) return codes.copy_(packed.view(sizes));
  const auto* from = packed.const_data_ptr<uint8_t>();
  auto* to = codes.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < codes.numel(); ++i) {
    const int64_t bit = i * spec.bits, byte = bit / 8;
    const uint32_t high = byte + 1 < packed.numel() ? from[byte + 1] : 0;
    to[i] = static_cast<uint8_t>((from[byte] | high << 8) >> (bit % 8) & ((1u << spec.bits) - 1));
  }
  return codes;
}

}  // namespace dovetail::mx
