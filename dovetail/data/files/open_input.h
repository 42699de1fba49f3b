#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "dovetail/base/file.h"
#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail::data {

enum class Packing { kNone, kGzip, kZstd, kBzip2 };
enum class Encoding { kUtf8, kUtf16Little, kUtf16Big };
enum class InputKind { kText, kParquet, kNpy, kZip, kOther };

/// Kind of an input file, found by its first bytes and never by its name.
struct InputHead {
  Packing packing = Packing::kNone;
  InputKind kind = InputKind::kText;    ///< kind of the unpacked bytes
  Encoding encoding = Encoding::kUtf8;  ///< encoding of a text
  /// Description for messages: "gzip-compressed text in UTF-16", "a PNG image".
  std::string name = "text";
  /// Extension in lower case, with its dot. If the name ends in .gz, .zst or .bz2: the extension
  /// before that.
  std::string extension;
  std::string remedy = {};  ///< advice if a reader does not support this kind

  /// Returns true if the bytes of the file need no conversion: not compressed, and UTF-8 if it is
  /// text.
  bool is_plain() const { return packing == Packing::kNone && encoding == Encoding::kUtf8; }
};

/// Returns the extension of a path as InputHead has it. Does not open the file.
std::string input_extension(const std::filesystem::path& path);

/// Inspects the first 64 KiB of a file, decompressed. An empty file is text. UTF-16 needs a byte
/// order mark.
///
/// Magic bytes identify gzip, zstd and bzip2, Parquet, .npy and zip (.npz). Other binary formats
/// are `kOther`. Text in UTF-32, or in UTF-16 without a mark, is also `kOther`; `name` states
/// which. Throws UserError for a file that cannot be read or whose compression is damaged. Also
/// throws for a pipe or a device, which cannot be read twice.
InputHead look_at_input(const std::filesystem::path& path);

/// Throws UserError "this is <name>, not <wanted>" unless `head.kind` is text.
void require_text(const InputHead& head, const std::filesystem::path& path,
                  std::string_view wanted);

/// Opens an input as a stream of bytes: decompressed, UTF-16 converted to UTF-8, without a byte
/// order mark. Memory: a few pieces of 256 KiB. `read` throws UserError for damage, a truncated
/// stream and half a surrogate pair of UTF-16.
std::unique_ptr<ByteStream> open_input_stream(const std::filesystem::path& path,
                                              const InputHead& head);

/// Writes the rest of a stream to an unnamed file in $TMPDIR (default /var/tmp), and maps the file.
MappedFile map_stream(ByteStream& stream);

/// Memory-mapped bytes of an input, the same as in `open_input_stream`. A plain file is mapped
/// directly. Any other file is first written to an unnamed file in $TMPDIR (default /var/tmp). Its
/// bytes then take space on that disk instead of memory.
class MappedInput {
 public:
  explicit MappedInput(const std::filesystem::path& path);
  MappedInput(const std::filesystem::path& path, InputHead head);

  const InputHead& head() const { return head_; }
  /// Content without a byte order mark. If a text has no line feed, its carriage returns become
  /// line feeds.
  std::string_view bytes() const { return bytes_; }
  const MappedFile& mapped() const { return file_; }

 private:
  InputHead head_;
  MappedFile file_;
  std::string_view bytes_;
};

}  // namespace dovetail::data
