#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "dovetail/base/file.h"
#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail::data {

/// Compression of a whole file.
enum class Packing { kNone, kGzip, kZstd, kBzip2 };
enum class Encoding { kUtf8, kUtf16Little, kUtf16Big };
/// Format of a file's content after decompression. kOther: no reader accepts it.
enum class InputKind { kText, kParquet, kNpy, kZip, kOther };

/// Properties of an input file that decide how to read it. All but `extension` are found from the
/// first bytes of the file, never from its name.
struct InputHead {
  Packing packing = Packing::kNone;
  InputKind kind = InputKind::kText;    ///< format of the decompressed content
  Encoding encoding = Encoding::kUtf8;  ///< character encoding, if the content is text
  /// Description of the file for messages. Examples: "text in UTF-16 (compressed by gzip)", "a PNG
  /// image".
  std::string name = "text";
  /// Extension of the file name in lower case, with its dot. An extension of a compressed file
  /// (.gz, .gzip, .zst, .zstd, .bz2) is dropped first: "a.JSONL.gz" has the extension ".jsonl".
  std::string extension;
  /// Advice to the user for an error that this kind is not supported. Example: "unpack it first".
  std::string remedy = {};

  /// Returns true if the file is neither compressed nor UTF-16. A reader can then use its bytes as
  /// they are.
  bool is_plain() const { return packing == Packing::kNone && encoding == Encoding::kUtf8; }
};

/// Returns the value of InputHead::extension for a file with this path. Does not open the file.
std::string input_extension(const std::filesystem::path& path);

/// Finds the properties of a file from the first 64 KiB of its decompressed content. An empty file
/// is text. UTF-16 is recognized only by its byte order mark.
///
/// Magic bytes identify gzip, zstd and bzip2, Parquet, .npy and zip (.npz). Other binary formats
/// get the kind `kOther`. Text in UTF-32, or in UTF-16 without a byte order mark, is also `kOther`.
/// `InputHead::name` then says which format it is. Throws UserError if the file cannot be read or
/// its compression is damaged. Also throws for a pipe or a device, which cannot be read twice.
InputHead look_at_input(const std::filesystem::path& path);

/// Throws UserError "this is <head.name>, not <wanted>" unless `head.kind` is text.
void require_text(const InputHead& head, const std::filesystem::path& path,
                  std::string_view wanted);

/// Opens an input file as a stream of its decompressed bytes. Text comes as UTF-8 without a byte
/// order mark. The stream takes a few times 256 KiB of memory. Its `read` throws UserError for
/// damage, a truncated file and half a surrogate pair of UTF-16.
std::unique_ptr<ByteStream> open_input_stream(const std::filesystem::path& path,
                                              const InputHead& head);

/// Writes the rest of a stream to an unnamed temporary file and returns the file, memory-mapped.
/// The file is in $TMPDIR (default /var/tmp) and disappears when it is unmapped.
MappedFile map_stream(ByteStream& stream);

/// Content of an input file, memory-mapped: the bytes that `open_input_stream` would return. A file
/// whose bytes need no conversion is mapped directly. The converted bytes of any other file are
/// first written to an unnamed temporary file in $TMPDIR (default /var/tmp). The converted bytes
/// then take space on that disk instead of memory.
class MappedInput {
 public:
  explicit MappedInput(const std::filesystem::path& path);
  MappedInput(const std::filesystem::path& path, InputHead head);

  const InputHead& head() const { return head_; }
  /// Returns the content without a byte order mark. In a text that has carriage returns but no line
  /// feeds, each carriage return becomes a line feed. If the text is compressed or UTF-16, only its
  /// first 64 KiB decide this.
  std::string_view bytes() const { return bytes_; }
  /// Returns the mapped file that `bytes()` points into.
  const MappedFile& mapped() const { return file_; }

 private:
  InputHead head_;
  MappedFile file_;
  std::string_view bytes_;
};

}  // namespace dovetail::data
