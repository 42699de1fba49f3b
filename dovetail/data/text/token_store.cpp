#include "dovetail/data/text/token_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "dovetail/base/error.h"
#include "dovetail/data/text/manifest.h"
#include "dovetail/data/text/token_shard.h"

namespace dovetail::data {
namespace {

template <class T>
void widen(const std::byte* tokens, int64_t count, int64_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, tokens + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    out[i] = static_cast<int64_t>(token);
  }
}

template <class T>
bool any_at_least(const std::byte* tokens, int64_t count, int64_t bound) {
  for (int64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, tokens + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    if (static_cast<int64_t>(token) >= bound) return true;
  }
  return false;
}

void check_sha256(const std::filesystem::path& path, const std::string& expected) {
  const std::string found = sha256_of_file(path);
  if (found != expected)
    throw UserError(fmt::format("damaged: SHA-256 is {}, the manifest says {}", found, expected),
                    "prepare the folder again: dovetail prepare", path.string());
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& folder,
                                          const TokenManifest::TokenizerPart& part) {
  std::string content;
  const std::string name = (folder / part.file).string();
  if (part.kind != "bytes") {
    content = read_file(name);
    if (sha256_of(content) != part.sha256)
      throw UserError("not the tokenizer that the folder was prepared with",
                      "prepare the folder again: dovetail prepare", name);
  }
  auto tokenizer = make_tokenizer(part.kind, content, name);
  if (tokenizer->vocab_size() != part.vocab_size)
    throw UserError(fmt::format("the manifest says {} tokens, its tokenizer has {}",
                                part.vocab_size, tokenizer->vocab_size()),
                    "prepare the folder again: dovetail prepare", name);
  return tokenizer;
}

}  // namespace

TokenStore::TokenStore(const std::filesystem::path& folder, Verify verify) : folder_(folder) {
  const auto manifest_path = folder / TokenManifest::kFile;
  if (!std::filesystem::exists(manifest_path))
    throw UserError(fmt::format("{} is not a prepared folder: it has no {}", folder.string(),
                                TokenManifest::kFile),
                    "make it from text: dovetail prepare");
  const std::string content = read_file(manifest_path);
  sha256_ = sha256_of(content);
  const TokenManifest manifest = parse_manifest(content, manifest_path.string());
  tokenizer_ = open_tokenizer(folder, manifest.tokenizer);
  const uint32_t width = token_width(vocab_size());
  for (size_t split = 0; split < 2; ++split) {
    bytes_[split] = manifest.splits[split].text_bytes;
    int64_t begin = 0;
    for (const auto& part : manifest.splits[split].shards) {
      const auto path = folder / part.file;
      Shard shard{MappedFile(path), begin, static_cast<int64_t>(part.tokens),
                  static_cast<int>(width)};
      const ShardHeader header = read_shard_header(shard.file.bytes(), path.string());
      if (header.count != part.tokens || header.text_bytes != part.text_bytes ||
          header.width != width)
        throw UserError("token shard does not belong to the manifest beside it",
                        "prepare the folder again: dovetail prepare", path.string());
      if (verify == Verify::kChecksums) {
        check_sha256(path, part.sha256);
        const std::byte* tokens = shard.file.bytes().data() + ShardHeader::kBytes;
        const bool outside = width == 2 ? any_at_least<uint16_t>(tokens, shard.count, vocab_size())
                                        : any_at_least<uint32_t>(tokens, shard.count, vocab_size());
        user_check(!outside, "{}: a token is outside the vocabulary of {}", path.string(),
                   vocab_size());
      }
      begin += shard.count;
      if (shard.count > 0) shards_[split].push_back(std::move(shard));
    }
  }
}

int64_t TokenStore::num_tokens(Split split) const {
  const auto& shards = shards_[static_cast<size_t>(split)];
  return shards.empty() ? 0 : shards.back().begin + shards.back().count;
}

uint64_t TokenStore::num_bytes(Split split) const { return bytes_[static_cast<size_t>(split)]; }

void TokenStore::read(Split split, int64_t begin, int64_t count, int64_t* out) const {
  const int64_t size = num_tokens(split);
  DOVETAIL_CHECK(begin >= 0 && count >= 0 && begin <= size && count <= size - begin,
                 "tokens {} + {} of {}", begin, count, size);
  const auto& shards = shards_[static_cast<size_t>(split)];
  auto shard =
      std::upper_bound(shards.begin(), shards.end(), begin,
                       [](int64_t position, const Shard& s) { return position < s.begin; });
  if (shard != shards.begin()) --shard;
  for (; count > 0; ++shard) {
    const int64_t offset = begin - shard->begin;
    const int64_t here = std::min(count, shard->count - offset);
    const std::byte* tokens =
        shard->file.bytes().data() + ShardHeader::kBytes + offset * shard->width;
    if (shard->width == 2)
      widen<uint16_t>(tokens, here, out);
    else
      widen<uint32_t>(tokens, here, out);
    begin += here;
    count -= here;
    out += here;
  }
}

}  // namespace dovetail::data
