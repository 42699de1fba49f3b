#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "dovetail/base/file.h"
#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail {

enum class Packing { kNone, kGzip, kZstd, kBzip2 };
enum class Encoding { kUtf8, kUtf16Little, kUtf16Big };
enum class InputKind { kText, kParquet, kNpy, kZip, kOther };

/// Kind of an input file, found by its first bytes and never by its name.
struct InputHead {
  Packing packing = Packing::kNone;
  InputKind kind = InputKind::kText;    ///< kind of the unpacked bytes
  Encoding encoding = Encoding::kUtf8;  ///< encoding of a text
  std::string name =
      "text";  ///< words for messages: "gzip-compressed text in UTF-16", "a PNG image"
  std::string
      extension;  ///< lower case, with its dot; before ".gz", ".zst" or ".bz2" if it ends so
  std::string remedy = {};  ///< advice for a reader that does not take this kind

  /// True where the bytes of the file are the bytes to read: not packed, and UTF-8 if it is a text.
  bool is_plain() const { return packing == Packing::kNone && encoding == Encoding::kUtf8; }
};

/// Extension of a path as InputHead has it. The file is not opened.
std::string input_extension(const std::filesystem::path& path);

/// Looks at the first 64 KiB, unpacked. An empty file is a text. UTF-16 needs a byte order mark.
///
/// Kinds by magic bytes: gzip, zstd, bzip2; Parquet, .npy, zip (.npz); other binary formats are
/// `kOther`, and so is a text in UTF-32 or in UTF-16 without a mark, which `name` says. Throws
/// UserError for a file that cannot be read, whose packing is damaged, or that is a pipe or a
/// device, which cannot be read twice.
InputHead look_at_input(const std::filesystem::path& path);

/// Throws UserError "this is <name>, not <wanted>" unless `head.kind` is text.
void require_text(const InputHead& head, const std::filesystem::path& path,
                  std::string_view wanted);

/// The bytes of an input from the first to the last: unpacked, UTF-16 as UTF-8, without a byte
/// order mark. Memory: some pieces of 256 KiB. `read` throws UserError for damage, a truncated
/// stream and half a surrogate pair of UTF-16.
std::unique_ptr<ByteStream> open_input_stream(const std::filesystem::path& path,
                                              const InputHead& head);

/// The rest of a stream in an unnamed file in $TMPDIR (default /var/tmp), mapped.
MappedFile map_stream(ByteStream& stream);

/// The same bytes, mapped. A plain file is mapped as it is. Any other is written to an unnamed file
/// in $TMPDIR (default /var/tmp) first: the bytes take space on that disk, not memory.
class MappedInput {
 public:
  explicit MappedInput(const std::filesystem::path& path);
  MappedInput(const std::filesystem::path& path, InputHead head);

  const InputHead& head() const { return head_; }
  /// Without a byte order mark. In a text with no line feed at all, carriage returns have become
  /// line feeds.
  std::string_view bytes() const { return bytes_; }
  const MappedFile& mapped() const { return file_; }

 private:
  InputHead head_;
  MappedFile file_;
  std::string_view bytes_;
};

}  // namespace dovetail
