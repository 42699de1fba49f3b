#include "dovetail/data/text/token_shard.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"

namespace dovetail::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token shards are mapped as they are stored: little-endian");

constexpr char kMagic[8] = {'D', 'V', 'T', 'L', 'T', 'O', 'K', 'S'};
constexpr uint32_t kShardVersion = 1;

struct RawHeader {
  char magic[8];
  uint32_t version, width;
  uint64_t count, text_bytes;
  uint8_t fingerprint[32];
};
static_assert(sizeof(RawHeader) == ShardHeader::kBytes);

uint8_t hex_digit(char c) { return static_cast<uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); }

}  // namespace

ShardHeader read_shard_header(std::span<const std::byte> file, const std::string& name) {
  const std::string help = "prepare the folder again: dovetail prepare";
  RawHeader raw;
  if (file.size() < sizeof(raw))
    throw UserError("token shard is truncated: no room for its header", help, name);
  std::memcpy(&raw, file.data(), sizeof(raw));
  if (std::memcmp(raw.magic, kMagic, sizeof(kMagic)) != 0)
    throw UserError("not a token shard", help, name);
  if (raw.version != kShardVersion)
    throw UserError(
        fmt::format("token shard of version {}, this program reads {}", raw.version, kShardVersion),
        help, name);
  if (raw.width != 2 && raw.width != 4)
    throw UserError(fmt::format("token shard with {} bytes a token", raw.width), help, name);
  const uint64_t room = file.size() - sizeof(raw);
  if (room % raw.width != 0 || room / raw.width != raw.count)
    throw UserError(fmt::format("token shard says {} tokens of {} bytes but has {} bytes of them",
                                raw.count, raw.width, room),
                    help, name);
  ShardHeader header{raw.width, raw.count, raw.text_bytes, {}};
  for (const uint8_t byte : raw.fingerprint) header.fingerprint += fmt::format("{:02x}", byte);
  return header;
}

uint32_t token_width(int64_t vocab_size) {
  return vocab_size <= std::numeric_limits<uint16_t>::max() + 1 ? 2 : 4;
}

std::string write_shard(const std::filesystem::path& path, const ShardHeader& header,
                        const std::vector<std::span<const int32_t>>& parts) {
  RawHeader raw{};
  std::memcpy(raw.magic, kMagic, sizeof(kMagic));
  raw.version = kShardVersion;
  raw.width = header.width;
  raw.count = header.count;
  raw.text_bytes = header.text_bytes;
  DOVETAIL_CHECK(header.fingerprint.size() == 2 * sizeof(raw.fingerprint), "fingerprint `{}`",
                 header.fingerprint);
  for (size_t i = 0; i < sizeof(raw.fingerprint); ++i)
    raw.fingerprint[i] = static_cast<uint8_t>(hex_digit(header.fingerprint[2 * i]) << 4 |
                                              hex_digit(header.fingerprint[2 * i + 1]));

  AtomicFile file(path);
  Sha256 hash;
  const auto write = [&](const void* data, size_t bytes) {
    file.write(data, bytes);
    hash.update(data, bytes);
  };
  write(&raw, sizeof(raw));
  uint64_t count = 0;
  for (const auto part : parts) {
    count += part.size();
    if (header.width == 4) {
      write(part.data(), part.size_bytes());
    } else {
      const std::vector<uint16_t> narrow(part.begin(), part.end());
      write(narrow.data(), narrow.size() * sizeof(uint16_t));
    }
  }
  DOVETAIL_CHECK(count == header.count, "{} tokens for a shard of {}", count, header.count);
  file.commit();
  return hash.hex_digest();
}

}  // namespace dovetail::data
