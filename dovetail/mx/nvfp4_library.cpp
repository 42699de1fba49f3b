#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/library.h"
#include "dovetail/mx/nvfp4.h"
#include "dovetail/ops/simd_level.h"

/// Implements torch.ops.dovetail.nvfp4_*. They run on the CPU, and throw elsewhere.
namespace dovetail::mx {

namespace {

Nvfp4Blocks parse_nvfp4_blocks(c10::string_view text) {
  if (text == "1x16") return Nvfp4Blocks::kRow;
  user_check(text == "16x16", "nvfp4: there are no blocks of \"{}\"; use 1x16 or 16x16",
             std::string(text));
  return Nvfp4Blocks::kSquare;
}

/// Packs the codes of two neighbours in one byte, the first in the low half.
at::Tensor pack_pairs(const at::Tensor& codes) {
  std::vector<int64_t> sizes = codes.sizes().vec();
  sizes.back() /= 2;
  sizes.push_back(2);
  const at::Tensor pairs = codes.view(sizes);
  return pairs.select(-1, 0).bitwise_or(pairs.select(-1, 1).bitwise_left_shift(4));
}

at::Tensor unpack_pairs(const at::Tensor& packed) {
  std::vector<int64_t> sizes = packed.sizes().vec();
  sizes.back() *= 2;
  return at::stack({packed.bitwise_and(15), packed.bitwise_right_shift(4)}, -1).view(sizes);
}

std::tuple<at::Tensor, at::Tensor, std::optional<at::Tensor>> library_nvfp4_quantize(
    const at::Tensor& x, const std::optional<at::Tensor>& tensor_scale, bool scales_tensor,
    c10::string_view blocks, c10::string_view non_finite, c10::string_view rounding, int64_t seed) {
  user_check(x.dim() >= 1 && x.size(-1) % 2 == 0,
             "nvfp4_quantize: a byte holds two elements, so the last size of x must be even, but x "
             "is {}; pad x with zeros",
             ops::describe(x));
  const Nvfp4 made =
      quantize_nvfp4(x, {.blocks = parse_nvfp4_blocks(blocks),
                         .scaling = tensor_scale    ? TensorScale::kGiven
                                    : scales_tensor ? TensorScale::kAmax
                                                    : TensorScale::kNone,
                         .tensor_scale = tensor_scale.value_or(at::Tensor()),
                         .non_finite = parse_non_finite({non_finite.data(), non_finite.size()}),
                         .rounding = parse_rounding({rounding.data(), rounding.size()}),
                         .seed = static_cast<uint64_t>(seed)});
  const at::Tensor& scale = made.tensor.tensor_scale;
  return {pack_pairs(made.tensor.codes), made.tensor.scales.view(at::kFloat8_e4m3fn),
          scale.defined() ? std::optional(scale) : std::nullopt};
}

at::Tensor library_nvfp4_dequantize(const at::Tensor& codes, const at::Tensor& scales,
                                    const std::optional<at::Tensor>& tensor_scale,
                                    c10::string_view blocks, at::ScalarType dtype) {
  user_check(codes.dim() >= 1 && codes.element_size() == 1 && scales.element_size() == 1,
             "nvfp4_dequantize: codes and scales have one byte each, but are {} and {}",
             ops::describe(codes), ops::describe(scales));
  return dequantize(Nvfp4Tensor{.codes = unpack_pairs(codes.contiguous().view(at::kByte)),
                                .scales = scales.contiguous().view(at::kByte),
                                .tensor_scale = tensor_scale.value_or(at::Tensor()),
                                .blocks = parse_nvfp4_blocks(blocks)},
                    dtype);
}

at::Tensor library_random_hadamard(const at::Tensor& x, int64_t seed) {
  return random_hadamard(x, static_cast<uint64_t>(seed));
}

}  // namespace

}  // namespace dovetail::mx

// words: off
TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  dovetail::define<
      "nvfp4_quantize(Tensor x, Tensor? tensor_scale, bool scales_tensor, str blocks, str "
      "non_finite, str rounding, int seed) -> (Tensor, Tensor, Tensor?)",
      dovetail::mx::library_nvfp4_quantize>(m);
  dovetail::define<
      "nvfp4_dequantize(Tensor codes, Tensor scales, Tensor? tensor_scale=None, str "
      "blocks=\"1x16\", ScalarType dtype=float) -> Tensor",
      dovetail::mx::library_nvfp4_dequantize>(m);
  dovetail::define<"nvfp4_hadamard(Tensor x, int seed=0) -> Tensor",
                   dovetail::mx::library_random_hadamard>(m);
}
// words: on
