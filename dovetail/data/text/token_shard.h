#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace dovetail::data {

/// Header of a token shard: 64 bytes, little-endian. `count` unsigned tokens of `width` bytes
/// follow.
///
///     offset  0  8 bytes   "DVTLTOKS"
///             8  uint32    version (1)
///            12  uint32    width: 2 or 4
///            16  uint64    count
///            24  uint64    bytes of text that the tokens encode
///            32  32 bytes  fingerprint of all that determined the content (SHA-256)
struct ShardHeader {
  static constexpr size_t kBytes = 64;
  uint32_t width = 2;
  uint64_t count = 0;
  uint64_t text_bytes = 0;
  std::string fingerprint;  ///< 64 hexadecimal digits
};

/// Reads the header of a shard. Throws UserError with `name` and the reason unless the file holds
/// exactly its tokens.
ShardHeader read_shard_header(std::span<const std::byte> file, const std::string& name);

/// Returns the bytes per token for a vocabulary: 2 or 4.
uint32_t token_width(int64_t vocab_size);

/// Writes a shard atomically. `parts`, one after the other, are its header.count tokens. Returns
/// the file's SHA-256.
std::string write_shard(const std::filesystem::path& path, const ShardHeader& header,
                        const std::vector<std::span<const int32_t>>& parts);

}  // namespace dovetail::data
