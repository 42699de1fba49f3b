#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace dovetail {

/// The header of a token shard: 64 bytes, little-endian, followed by `count` tokens of `width`
/// bytes, unsigned.
///
///     offset  0  8 bytes   "DVTLTOKS"
///             8  uint32    version (1)
///            12  uint32    width: 2 or 4
///            16  uint64    count
///            24  uint64    bytes of text behind the tokens
///            32  32 bytes  fingerprint of all that determined the content (SHA-256)
struct ShardHeader {
  static constexpr size_t kBytes = 64;
  uint32_t width = 2;
  uint64_t count = 0;
  uint64_t text_bytes = 0;
  std::string fingerprint;  ///< 64 hexadecimal digits
};

/// The header of a shard whose file holds exactly its tokens. Throws UserError with `name` and the
/// reason.
ShardHeader read_shard_header(std::span<const std::byte> file, const std::string& name);

/// Bytes a token for a vocabulary.
uint32_t token_width(int64_t vocab_size);

/// Written atomically. `parts`, one after the other, are its header.count tokens. Returns the
/// file's SHA-256.
std::string write_shard(const std::filesystem::path& path, const ShardHeader& header,
                        const std::vector<std::span<const int32_t>>& parts);

}  // namespace dovetail
