#pragma once

#include <cstdint>

namespace dovetail::ops {

/// Sizes of an image (channels, height, width) and of its columns. The columns are a matrix
/// (channels * kernel_height * kernel_width, out_height * out_width). Row (c, r, s) of it holds,
/// for each output pixel, the element of channel c that filter tap (r, s) reads. Elements outside
/// the image are zero.
struct ColumnShape {
  int64_t channels, height, width;
  int64_t kernel_height, kernel_width, stride_height, stride_width, pad_height, pad_width;
  int64_t out_height, out_width;

  int64_t rows() const { return channels * kernel_height * kernel_width; }
  int64_t pixels() const { return out_height * out_width; }
};

/// Computes the columns of an image (im2col).
void image_to_columns(const ColumnShape& shape, const float* image, float* columns);

/// Computes an image from columns (col2im): the gradient of `image_to_columns`. In its forward
/// pass, `image_to_columns` copies each element of the image to several elements of the columns.
/// Here, each element of the image is the sum of these elements. Additions are in the order of the
/// rows of the columns.
void columns_to_image(const ColumnShape& shape, const float* columns, float* image);

}  // namespace dovetail::ops
