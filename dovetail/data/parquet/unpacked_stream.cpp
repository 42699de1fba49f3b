#include <arrow/io/api.h>
#include <arrow/io/compressed.h>
#include <arrow/util/compression.h>
#include <arrow/util/crc32.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail {
namespace {

/// Joined members of gzip and bzip2 and frames of zstd are read one after another.
class UnpackedStream : public ByteStream {
 public:
  UnpackedStream(std::string path, const std::string& codec, uint64_t begin, uint64_t bytes)
      : path_(std::move(path)), codec_name_(codec) {
    arrow::util::GZipCodecOptions deflate;
    deflate.gzip_format = arrow::util::GZipFormat::DEFLATE;
    codec_ =
        check(codec == "deflate" ? arrow::util::Codec::Create(arrow::Compression::GZIP, deflate)
                                 : arrow::util::Codec::Create(check(arrow::util::Codec::GetCompressionType(codec))));
    auto file = check(arrow::io::ReadableFile::Open(path_));
    auto part = check(arrow::io::RandomAccessFile::GetStream(std::move(file), static_cast<int64_t>(begin),
                                                             static_cast<int64_t>(bytes)));
    stream_ = check(arrow::io::CompressedInputStream::Make(codec_.get(), std::move(part)));
  }

  size_t read(char* to, size_t bytes) override {
    return static_cast<size_t>(check(stream_->Read(static_cast<int64_t>(bytes), to)));
  }

 private:
  template <class T>
  T check(arrow::Result<T> result) const {
    if (!result.ok())
      throw UserError(
          fmt::format("the {} stream is damaged or ends early: {}", codec_name_, printable(result.status().message())),
          "download or write the file again", path_);
    return std::move(result).ValueUnsafe();
  }

  std::string path_, codec_name_;
  std::unique_ptr<arrow::util::Codec> codec_;
  std::shared_ptr<arrow::io::CompressedInputStream> stream_;
};

}  // namespace
}  // namespace dovetail

extern "C" __attribute__((visibility("default"))) void dovetail_open_unpacked(
    const char* path, const char* codec, uint64_t begin, uint64_t bytes,
    std::unique_ptr<dovetail::ByteStream>& stream) {
  stream = std::make_unique<dovetail::UnpackedStream>(path, codec, begin, bytes);
}

extern "C" __attribute__((visibility("default"))) uint32_t dovetail_crc32(const void* bytes, size_t size) {
  return arrow::internal::crc32(0, bytes, size);
}
