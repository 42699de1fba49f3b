#include <arrow/io/api.h>
#include <arrow/io/compressed.h>
#include <arrow/util/compression.h>
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
  UnpackedStream(std::string path, const std::string& codec) : path_(std::move(path)), codec_name_(codec) {
    codec_ = check(arrow::util::Codec::Create(check(arrow::util::Codec::GetCompressionType(codec))));
    auto file = check(arrow::io::ReadableFile::Open(path_));
    stream_ = check(arrow::io::CompressedInputStream::Make(codec_.get(), std::move(file)));
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
    const char* path, const char* codec, std::unique_ptr<dovetail::ByteStream>& stream) {
  stream = std::make_unique<dovetail::UnpackedStream>(path, codec);
}
