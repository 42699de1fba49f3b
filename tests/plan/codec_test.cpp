#include "dovetail/plan/model/compression.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "dovetail/mx/quantize.h"
#include "tests/mx/blocks.h"

namespace dovetail::plan::codec_test {
namespace {

constexpr mx::Format kFormats[] = {mx::Format::kE4M3, mx::Format::kE5M2, mx::Format::kE3M2,
                                   mx::Format::kE2M3, mx::Format::kE2M1, mx::Format::kInt8};
constexpr mx::ScaleMode kScaleModes[] = {mx::ScaleMode::kRoundUp, mx::ScaleMode::kFloor,
                                         mx::ScaleMode::kCeil, mx::ScaleMode::kEven};

const std::byte* bytes_of(const at::Tensor& x) {
  return static_cast<const std::byte*>(x.const_data_ptr());
}

/// Packs and unpacks `x`. Guard bytes after both buffers must stay unchanged.
at::Tensor through(const PackedForm& form, const at::Tensor& x) {
  constexpr int64_t kGuard = 64;
  const int64_t bytes = packed_bytes(x.numel()), size = x.numel() * x.element_size();
  const at::Tensor packed = at::full({bytes + kGuard}, 0x5a, at::kByte);
  const at::Tensor back = at::full({size + kGuard}, 0x5a, at::kByte);
  pack(form, bytes_of(x), x.numel(), static_cast<std::byte*>(packed.mutable_data_ptr()));
  unpack(form, bytes_of(packed), x.numel(), static_cast<std::byte*>(back.mutable_data_ptr()));
  EXPECT_TRUE(packed.narrow(0, bytes, kGuard).eq(0x5a).all().item<bool>());
  EXPECT_TRUE(back.narrow(0, size, kGuard).eq(0x5a).all().item<bool>());
  at::Tensor out = at::empty_like(x);
  std::memcpy(out.mutable_data_ptr(), back.const_data_ptr(), static_cast<size_t>(size));
  return out;
}

TEST(Packing, GivesTheBitsOfQuantizedNumbersForAnyLength) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t length : {1, 31, 32, 33, 2047, 2048, 2049, 4096, 20011}) {
      SCOPED_TRACE(fmt::format("{} of {}", length, c10::toString(dtype)));
      const at::Tensor x = mx::ordinary_values({length}, static_cast<uint64_t>(length), dtype);
      const auto expected = mx::dequantize(mx::quantize(x).row, dtype);
      EXPECT_EQ(mx::bits_of_tensor(through({.dtype = dtype}, x)), mx::bits_of_tensor(expected));
    }
}

TEST(Packing, GivesTheBitsOfQuantizedNumbersDownColumns) {
  for (const mx::Format format : {mx::Format::kE4M3, mx::Format::kE5M2})
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{32, 1}, {64, 33}, {96, 100}}) {
      const at::Tensor x = mx::ordinary_values({rows, columns}, 3, at::kFloat);
      const auto expected = mx::dequantize(
          mx::quantize(x, {.format = format, .copies = mx::Copies::kColumn}).column, at::kFloat);
      EXPECT_EQ(mx::bits_of_tensor(through({.format = format, .columns = columns}, x)),
                mx::bits_of_tensor(expected));
    }
}

TEST(Packing, TakesNoMoreThanAPlanCounts) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (int64_t elements = 1; elements < 3000; elements += 7) {
      Graph graph;
      graph.codecs = {codec_of({.dtype = dtype}, 0)};
      graph.tensors = {{.bytes = elements * static_cast<int64_t>(c10::elementSize(dtype))}};
      EXPECT_EQ(packed_bytes(elements), graph.packed_bytes(0, 0)) << elements;
    }
}

TEST(Packing, IsOffByNoMoreThanItSays) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor x = mx::adversarial_values({700, 32}, 5, mx::Format::kE4M3, false, dtype);
    const at::Tensor largest = x.to(at::kDouble).abs().amax(1, true);
    x = x.masked_fill(largest.lt(0x1p-110), 0);  // where the scale cannot follow
    const at::Tensor error =
        (through({.dtype = dtype}, x.contiguous()).to(at::kDouble) - x.to(at::kDouble)).abs();
    const at::Tensor share = (error / largest).nan_to_num();
    EXPECT_LE(share.max().item<double>(), kLargestError);
    EXPECT_GT(share.max().item<double>(), 0.9 * kLargestError);
  }
}

TEST(Packing, ABlockWithoutAFiniteNumberComesBackAsNoNumber) {
  at::Tensor x = at::ones({96});
  x[40] = std::numeric_limits<float>::infinity();
  const at::Tensor back = through({}, x);
  EXPECT_TRUE(back.narrow(0, 32, 32).isnan().all().item<bool>());
  EXPECT_TRUE(back.narrow(0, 0, 32).eq(1).all().item<bool>());
  EXPECT_TRUE(back.narrow(0, 64, 32).eq(1).all().item<bool>());
}

// Quantizing values that were quantized before gives the same values. Codes may differ. The scale
// is smaller if the block's largest element was rounded down to the lower neighbour of a power of
// two. The same holds for bfloat16's replacements of the smallest numbers.
TEST(Packing, OfWhatWasPackedGivesTheSameNumbers) {
  for (const mx::Format format : kFormats)
    for (const mx::ScaleMode mode : kScaleModes)
      for (const auto& [along_rows, dtype] :
           {std::pair(true, at::kFloat), std::pair(false, at::kFloat),
            std::pair(true, at::kBFloat16), std::pair(false, at::kBFloat16)}) {
        SCOPED_TRACE(fmt::format("{} {} {} {}", mx::name(format), mx::name(mode),
                                 along_rows ? "rows" : "columns", c10::toString(dtype)));
        const mx::QuantizeSpec spec{.format = format,
                                    .scale_mode = mode,
                                    .copies = along_rows ? mx::Copies::kRow : mx::Copies::kColumn};
        const auto numbers_of = [&](const at::Tensor& x) {
          const mx::Quantized made = mx::quantize(x, spec);
          return mx::dequantize(along_rows ? made.row : made.column, x.scalar_type());
        };
        at::Tensor x = mx::adversarial_values({320, 64}, 11, format, false, dtype);
        // bfloat16 cannot represent the codes of the smallest blocks.
        x.narrow(0, 0, 160).copy_(at::randn({160, 64}) *
                                  at::logspace(-140, -100, 160, 2).unsqueeze(1));
        x = along_rows ? x : x.t().contiguous();
        const at::Tensor once = numbers_of(x), twice = numbers_of(once);
        EXPECT_EQ(mx::bits_of_tensor(twice), mx::bits_of_tensor(once));
        EXPECT_NE(mx::bits_of_tensor(once), mx::bits_of_tensor(x));
      }
}

TEST(Packing, IsMeasured) {
  Codec codec = codec_of({.dtype = at::kBFloat16}, kLargestError);
  EXPECT_EQ(codec.ratio, 33.0 / 64);
  measure({.dtype = at::kBFloat16}, 1 << 20, 3, codec);
  EXPECT_GT(codec.encode_bytes_per_s, 1e6);
  EXPECT_GT(codec.decode_bytes_per_s, 1e6);
  EXPECT_EQ(name(PackedForm{.columns = 64}), "e4m3.round_up.columns64.float32");
}

}  // namespace
}  // namespace dovetail::plan::codec_test
