#include <arrow/io/api.h>
#include <arrow/util/compression.h>
#include <arrow/util/crc32.h>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail::data {
namespace {

/// Stream that decompresses a range of a file. Concatenated members of gzip and bzip2 and frames of
/// zstd are read one after another. Zeros may follow a member of gzip.
class UnpackedStream : public ByteStream {
 public:
  UnpackedStream(std::string path, const std::string& codec, uint64_t begin, uint64_t bytes)
      : path_(std::move(path)), codec_name_(codec), packed_(kPieceBytes, '\0') {
    arrow::util::GZipCodecOptions deflate;
    deflate.gzip_format = arrow::util::GZipFormat::DEFLATE;
    codec_ = check(
        codec == "deflate"
            ? arrow::util::Codec::Create(arrow::Compression::GZIP, deflate)
            : arrow::util::Codec::Create(check(arrow::util::Codec::GetCompressionType(codec))));
    decompressor_ = check(codec_->MakeDecompressor());
    auto file = check(arrow::io::ReadableFile::Open(path_));
    from_ = check(arrow::io::RandomAccessFile::GetStream(
        std::move(file), static_cast<int64_t>(begin), static_cast<int64_t>(bytes)));
  }

  size_t read(char* to, size_t bytes) override {
    size_t done = 0;
    while (done < bytes) {
      if (at_ == end_) fill();
      if (between_ && !begin_member()) break;
      const auto* packed = reinterpret_cast<const uint8_t*>(packed_.data()) + at_;
      const auto part =
          check(decompressor_->Decompress(end_ - at_, packed, static_cast<int64_t>(bytes - done),
                                          reinterpret_cast<uint8_t*>(to) + done));
      at_ += part.bytes_read;
      done += static_cast<size_t>(part.bytes_written);
      between_ = decompressor_->IsFinished();
      if (part.bytes_read == 0 && part.bytes_written == 0 && !between_)
        refuse("the end is missing");
    }
    return done;
  }

 private:
  static constexpr size_t kPieceBytes = size_t{64} << 10;

  void fill() {
    at_ = 0;
    end_ = check(from_->Read(static_cast<int64_t>(packed_.size()), packed_.data()));
  }

  /// Starts the next member. Skips zeros that pad gzip, as gzip and Python do. Returns false at the
  /// end of the file.
  bool begin_member() {
    while (codec_name_ == "gzip" && at_ < end_ && packed_[static_cast<size_t>(at_)] == '\0')
      if (++at_ == end_) fill();
    if (at_ == end_) return false;
    check(decompressor_->Reset());
    between_ = false;
    return true;
  }

  [[noreturn]] void refuse(std::string_view reason) const {
    throw UserError(
        fmt::format("the {} stream is damaged or ends early: {}", codec_name_, printable(reason)),
        "download or write the file again", path_);
  }
  void check(const arrow::Status& status) const {
    if (!status.ok()) refuse(status.message());
  }
  template <class T>
  T check(arrow::Result<T> result) const {
    check(result.status());
    return std::move(result).ValueUnsafe();
  }

  std::string path_, codec_name_, packed_;
  std::unique_ptr<arrow::util::Codec> codec_;
  std::shared_ptr<arrow::util::Decompressor> decompressor_;
  std::shared_ptr<arrow::io::InputStream> from_;
  int64_t at_ = 0, end_ = 0;  ///< range of `packed_` that is not decompressed yet
  bool between_ = true;       ///< true between members
};

}  // namespace
}  // namespace dovetail::data

extern "C" __attribute__((visibility("default"))) void dovetail_open_unpacked(
    const char* path, const char* codec, uint64_t begin, uint64_t bytes,
    std::unique_ptr<dovetail::data::ByteStream>& stream) {
  stream = std::make_unique<dovetail::data::UnpackedStream>(path, codec, begin, bytes);
}

extern "C" __attribute__((visibility("default"))) uint32_t dovetail_crc32(const void* bytes,
                                                                          size_t size) {
  return arrow::internal::crc32(0, bytes, size);
}
