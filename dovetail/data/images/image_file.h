#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>

namespace dovetail::data {

/// Returns true for a name that ends in .png, .jpg or .jpeg, in either case.
bool is_image_name(const std::filesystem::path& path);

/// Decodes a PNG or JPEG file, recognized by its first bytes: (channels, height, width) uint8.
/// `channels` is 3 (red, green, blue) or 1 (brightness: 0.299 R + 0.587 G + 0.114 B, rounded).
/// Transparency is left out, and 16 bits a channel are rounded to 8. The orientation in EXIF data
/// is not applied, as in torchvision. Throws UserError, naming the file, for another format, for
/// damage, and for more than 2^27 pixels.
at::Tensor read_image(const std::filesystem::path& path, int64_t channels);

/// Decodes a mask: a PNG whose one channel, or whose palette index, is the class of each pixel.
/// Returns (height, width) uint8. Throws UserError, naming the file, for a JPEG, for several
/// channels, and for 16 bits.
at::Tensor read_mask(const std::filesystem::path& path);

}  // namespace dovetail::data
