#include "dovetail/data/images/image_file.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <png.h>
#include <turbojpeg.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"

namespace dovetail::data {
namespace {

constexpr int64_t kMostPixels = int64_t{1} << 27;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason,
                         const std::string& help = "") {
  throw UserError(reason, help, path.string());
}

void check_size(const std::filesystem::path& path, int64_t width, int64_t height) {
  if (width <= 0 || height <= 0 || width > kMostPixels / height)
    refuse(path, fmt::format("an image of {} x {} pixels is not read", width, height));
}

/// Image as rows of pixels, each with its channels: (height, width, channels) uint8.
struct Pixels {
  int64_t width = 0, height = 0, channels = 0;
  std::vector<uint8_t> bytes;
};

/// State of a PNG decoder. libpng reports an error by a jump to `error`, so no function between
/// has an object to destroy.
struct PngReader {
  std::string_view file;
  size_t at = 0;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::string message;

  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
};

PngReader& reader_of(png_voidp pointer) { return *static_cast<PngReader*>(pointer); }

[[noreturn]] void on_png_error(png_structp png, png_const_charp message) {
  reader_of(png_get_error_ptr(png)).message = message;
  png_longjmp(png, 1);
}

void on_png_warning(png_structp, png_const_charp) {}

void read_png_bytes(png_structp png, png_bytep to, size_t count) {
  PngReader& reader = reader_of(png_get_io_ptr(png));
  if (count > reader.file.size() - reader.at) png_error(png, "the file is cut");
  std::memcpy(to, reader.file.data() + reader.at, count);
  reader.at += count;
}

/// Reads the header. Returns false after an error of libpng.
bool read_png_header(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_info(reader.png, reader.info);
  return true;
}

/// Asks for 8 bits of each channel: colours or brightness, or with `raw` the samples as stored.
/// Returns false after an error of libpng.
bool set_png_format(PngReader& reader, bool raw) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  if (raw) {
    png_set_packing(reader.png);
  } else {
    png_set_expand(reader.png);
    png_set_scale_16(reader.png);
    png_set_strip_alpha(reader.png);
  }
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return true;
}

/// Returns false after an error of libpng.
bool read_png_rows(PngReader& reader, std::vector<png_bytep>& rows) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_image(reader.png, rows.data());
  return true;
}

Pixels read_png(const std::filesystem::path& path, std::string_view file, bool raw) {
  PngReader reader{.file = file};
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_png_error, on_png_warning);
  if (reader.png != nullptr) reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr) refuse(path, "the PNG decoder has no memory");
  png_set_read_fn(reader.png, &reader, read_png_bytes);
  const auto require = [&](bool done) {
    if (!done) refuse(path, fmt::format("this PNG cannot be decoded: {}", reader.message));
  };
  require(read_png_header(reader));
  Pixels out{.width = png_get_image_width(reader.png, reader.info),
             .height = png_get_image_height(reader.png, reader.info)};
  check_size(path, out.width, out.height);
  if (raw && png_get_bit_depth(reader.png, reader.info) == 16)
    refuse(path, "a mask of 16 bits is not read",
           "a mask has the class of each pixel in 8 bits or fewer, or in a palette");
  require(set_png_format(reader, raw));
  out.channels = png_get_channels(reader.png, reader.info);
  out.bytes.resize(static_cast<size_t>(out.width * out.height * out.channels));
  std::vector<png_bytep> rows(static_cast<size_t>(out.height));
  for (size_t y = 0; y < rows.size(); ++y)
    rows[y] = out.bytes.data() + y * static_cast<size_t>(out.width * out.channels);
  require(read_png_rows(reader, rows));
  return out;
}

Pixels read_jpeg(const std::filesystem::path& path, std::string_view file) {
  const std::unique_ptr<void, int (*)(tjhandle)> decoder(tjInitDecompress(), tjDestroy);
  if (decoder == nullptr) refuse(path, "the JPEG decoder has no memory");
  const auto* data = reinterpret_cast<const unsigned char*>(file.data());
  // A warning, as of bytes that nothing needs, comes with the whole image. A cut file has a part.
  const auto require = [&](int result) {
    if (result == 0) return;
    const std::string_view reason = tjGetErrorStr2(decoder.get());
    if (tjGetErrorCode(decoder.get()) == TJERR_WARNING && !reason.starts_with("Premature end"))
      return;
    refuse(path, fmt::format("this JPEG cannot be decoded: {}", reason));
  };
  int width = 0, height = 0, subsampling = 0, space = 0;
  require(
      tjDecompressHeader3(decoder.get(), data, file.size(), &width, &height, &subsampling, &space));
  if (width == 0) refuse(path, "this JPEG cannot be decoded: it ends within its header");
  if (space == TJCS_CMYK || space == TJCS_YCCK)
    refuse(path, "a JPEG in CMYK is not read", "convert it to RGB");
  check_size(path, width, height);
  Pixels out{.width = width, .height = height, .channels = 3};
  out.bytes.resize(static_cast<size_t>(out.width * out.height * out.channels));
  require(tjDecompress2(decoder.get(), data, file.size(), out.bytes.data(), width, 0, height,
                        TJPF_RGB, 0));
  return out;
}

/// Brightness by ITU-R BT.601 with 16 bits of fraction, rounded.
uint8_t brightness(const uint8_t* rgb) {
  constexpr uint32_t kRed = 19595, kGreen = 38470, kBlue = 7471, kHalf = 32768;
  return static_cast<uint8_t>((rgb[0] * kRed + rgb[1] * kGreen + rgb[2] * kBlue + kHalf) >> 16U);
}

/// Returns (channels, height, width). One channel of three is their brightness; three channels of
/// one are copies.
at::Tensor planes(const Pixels& pixels, int64_t channels) {
  at::Tensor out = at::empty({channels, pixels.height, pixels.width}, at::kByte);
  auto* to = out.mutable_data_ptr<uint8_t>();
  const int64_t count = pixels.height * pixels.width, from = pixels.channels;
  const bool darkens = channels < from;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* pixel = pixels.bytes.data() + i * from;
    for (int64_t c = 0; c < channels; ++c)
      to[c * count + i] = darkens ? brightness(pixel) : pixel[std::min(c, from - 1)];
  }
  return out;
}

bool is_png(std::string_view file) { return file.starts_with("\x89PNG\r\n\x1a\n"); }

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

bool is_image_name(const std::filesystem::path& path) {
  std::string end = path.extension().string();
  std::ranges::transform(end, end.begin(), [](unsigned char c) { return std::tolower(c); });
  return end == ".png" || end == ".jpg" || end == ".jpeg";
}

at::Tensor read_image(const std::filesystem::path& path, int64_t channels) {
  const MappedFile mapped(path);
  const std::string_view file = text_of(mapped);
  if (is_png(file)) return planes(read_png(path, file, /*raw=*/false), channels);
  if (file.starts_with("\xff\xd8\xff")) return planes(read_jpeg(path, file), channels);
  refuse(path, "this is neither a PNG nor a JPEG image",
         "convert it, or move it out of the folder");
}

at::Tensor read_mask(const std::filesystem::path& path) {
  const MappedFile mapped(path);
  const std::string_view file = text_of(mapped);
  if (!is_png(file))
    refuse(path, "a mask must be a PNG", "write the class of each pixel as a PNG of one channel");
  const Pixels pixels = read_png(path, file, /*raw=*/true);
  if (pixels.channels != 1)
    refuse(path, fmt::format("the mask has {} channels", pixels.channels),
           "a mask has one channel or a palette, with the class of each pixel");
  return planes(pixels, 1).squeeze(0);
}

}  // namespace dovetail::data
