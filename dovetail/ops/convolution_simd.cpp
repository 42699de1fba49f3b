#include "dovetail/ops/convolution_simd.h"

#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/ops/convolution_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "dovetail/base/threads.h"
#include "dovetail/ops/simd_math_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

/// Outputs [begin, end) of a line that read inside the image: output o reads element o * stride +
/// offset of a line of `size`.
struct Inside {
  Inside(int64_t outputs, int64_t size, int64_t stride, int64_t offset)
      : begin(std::clamp<int64_t>(offset >= 0 ? 0 : (stride - 1 - offset) / stride, 0, outputs)),
        end(std::clamp<int64_t>(size <= offset ? 0 : (size - offset + stride - 1) / stride, begin,
                                outputs)) {}
  int64_t begin, end;
};

void copy_line(const float* from, int64_t stride, int64_t count, float* to) {
  if (stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
  }
}

void add_line(const float* from, int64_t count, float* to, int64_t stride) {
  if (stride == 1) {
    for (int64_t i = 0; i < count; i += kLanes)
      store(hn::Add(load(to + i, count - i), load(from + i, count - i)), to + i, count - i);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i * stride] += from[i];
  }
}

void ToColumns(const ColumnShape& s, const float* image, float* columns) {
  const int64_t taps = s.kernel_height * s.kernel_width;
  parallel_pieces(s.rows(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = image + row / taps * s.height * s.width;
      float* to = columns + row * s.pixels();
      const int64_t top = row % taps / s.kernel_width - s.pad_height;
      const int64_t left = row % taps % s.kernel_width - s.pad_width;
      const Inside inside(s.out_width, s.width, s.stride_width, left);
      for (int64_t y = 0; y < s.out_height; ++y, to += s.out_width) {
        const int64_t line = y * s.stride_height + top;
        if (line < 0 || line >= s.height || inside.begin == inside.end) {
          std::fill_n(to, s.out_width, 0.0f);
          continue;
        }
        std::fill_n(to, inside.begin, 0.0f);
        copy_line(from + line * s.width + inside.begin * s.stride_width + left, s.stride_width,
                  inside.end - inside.begin, to + inside.begin);
        std::fill(to + inside.end, to + s.out_width, 0.0f);
      }
    }
  });
}

void ToImage(const ColumnShape& s, const float* columns, float* image) {
  const int64_t taps = s.kernel_height * s.kernel_width;
  parallel_pieces(s.channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t channel = begin; channel < end; ++channel) {
      float* to = image + channel * s.height * s.width;
      std::fill_n(to, s.height * s.width, 0.0f);
      for (int64_t tap = 0; tap < taps; ++tap) {
        const float* from = columns + (channel * taps + tap) * s.pixels();
        const int64_t top = tap / s.kernel_width - s.pad_height,
                      left = tap % s.kernel_width - s.pad_width;
        const Inside inside(s.out_width, s.width, s.stride_width, left);
        if (inside.begin == inside.end) continue;
        for (int64_t y = 0; y < s.out_height; ++y, from += s.out_width) {
          const int64_t line = y * s.stride_height + top;
          if (line < 0 || line >= s.height) continue;
          add_line(from + inside.begin, inside.end - inside.begin,
                   to + line * s.width + inside.begin * s.stride_width + left, s.stride_width);
        }
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::ops {

HWY_EXPORT(ToColumns);
HWY_EXPORT(ToImage);

void image_to_columns(const ColumnShape& shape, const float* image, float* columns) {
  HWY_DYNAMIC_DISPATCH(ToColumns)(shape, image, columns);
}

void columns_to_image(const ColumnShape& shape, const float* columns, float* image) {
  HWY_DYNAMIC_DISPATCH(ToImage)(shape, columns, image);
}

}  // namespace dovetail::ops
#endif
