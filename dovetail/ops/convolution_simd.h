#pragma once

#include <cstdint>

namespace dovetail {

/// One image (channels, height, width) and its columns (channels * kernel_height * kernel_width,
/// out_height * out_width): row (c, r, s) is what tap (r, s) of a filter reads of channel c for
/// each output, zeros around the image.
struct ColumnShape {
  int64_t channels, height, width;
  int64_t kernel_height, kernel_width, stride_height, stride_width, pad_height, pad_width;
  int64_t out_height, out_width;

  int64_t rows() const { return channels * kernel_height * kernel_width; }
  int64_t pixels() const { return out_height * out_width; }
};

/// im2col.
void image_to_columns(const ColumnShape& shape, const float* image, float* columns);

/// col2im: each element of the image becomes the sum of those of the columns that were read from
/// it, in their order.
void columns_to_image(const ColumnShape& shape, const float* columns, float* image);

}  // namespace dovetail
