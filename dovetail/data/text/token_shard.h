#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace dovetail::data {

/// A token shard is a file with a part of the tokens of a prepared folder. It has a header of 64
/// bytes, then `count` tokens as unsigned integers of `width` bytes. All numbers are little-endian.
///
///     offset  0  8 bytes   "DVTLTOKS"
///             8  uint32    version (1)
///            12  uint32    width: 2 or 4
///            16  uint64    count
///            24  uint64    bytes of text that the tokens encode
///            32  32 bytes  fingerprint of all that determined the content (SHA-256)
struct ShardHeader {
  static constexpr size_t kBytes = 64;  ///< size of the header
  uint32_t width = 2;                   ///< bytes per token
  uint64_t count = 0;                   ///< number of tokens
  uint64_t text_bytes = 0;              ///< bytes of text that the tokens encode
  std::string fingerprint;              ///< 64 hexadecimal digits
};

/// Reads the header of a shard from `file`, the bytes of the whole file. Throws UserError, with the
/// reason, if it is not a shard or has more or fewer tokens than its header says. `name` stands for
/// the file in errors.
ShardHeader read_shard_header(std::span<const std::byte> file, const std::string& name);

/// Returns the bytes per token in a shard for a vocabulary of this size: 2 or 4.
uint32_t token_width(int64_t vocab_size);

/// Writes a shard that appears at `path` only when it is complete. It contains the tokens of all
/// `parts`, one part after the other. Together, the parts must have header.count tokens. Returns
/// the SHA-256 of the file.
std::string write_shard(const std::filesystem::path& path, const ShardHeader& header,
                        const std::vector<std::span<const int32_t>>& parts);

}  // namespace dovetail::data
