#include "dovetail/data/text/manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/json_fault.h"

namespace dovetail::data {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "dovetail-tokens";
constexpr uint64_t kVersion = 1;
constexpr const char* kSplitNames[2] = {"train", "validation"};

class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  TokenManifest read(std::string_view content) const {
    json root;
    try {
      root = json::parse(content);
    } catch (const json::exception& e) {
      refuse(fmt::format("is not valid JSON: {}", json_fault(e)));
    }
    if (text(root, "format") != kFormat) refuse("is not of a folder that dovetail prepared");
    if (const uint64_t version = number(root, "version"); version != kVersion)
      refuse(fmt::format("has version {}, this program reads {}", version, kVersion));

    TokenManifest manifest;
    manifest.fingerprint = digest(root, "fingerprint");
    manifest.settings = member(root, "settings").dump();
    read_tokenizer(member(root, "tokenizer"), manifest.tokenizer);
    manifest.documents = number(root, "documents");
    manifest.duplicates_skipped = number(root, "duplicates_skipped");
    manifest.oversized_skipped = number(root, "oversized_skipped");
    manifest.invalid_skipped = number(root, "invalid_skipped");
    if (root.contains("empty_skipped")) manifest.empty_skipped = number(root, "empty_skipped");
    if (root.contains("bad_skipped")) manifest.bad_skipped = number(root, "bad_skipped");
    for (int split = 0; split < 2; ++split)
      read_split(member(root, kSplitNames[split]), manifest.splits[split]);
    for (const json& entry : list(root, "sources"))
      manifest.sources.push_back(
          {text(entry, "path"), number(entry, "bytes"), digest(entry, "sha256")});
    return manifest;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(fmt::format("the manifest {}", what),
                    "prepare the folder again: dovetail prepare", name_);
  }

  const json& member(const json& object, const char* key) const {
    if (!object.is_object()) refuse(fmt::format("has no object around `{}`", key));
    const auto it = object.find(key);
    if (it == object.end()) refuse(fmt::format("has no `{}`", key));
    return *it;
  }

  std::string text(const json& object, const char* key) const {
    const json& value = member(object, key);
    if (!value.is_string()) refuse(fmt::format("has a `{}` that is not a string", key));
    return value.get<std::string>();
  }

  std::string digest(const json& object, const char* key) const {
    std::string value = text(object, key);
    if (value.size() != 64 || value.find_first_not_of("0123456789abcdef") != std::string::npos)
      refuse(fmt::format("has a `{}` that is not a SHA-256", key));
    return value;
  }

  /// Reads a count. Counts are below 2^53, so that sums and products of a few of them fit 64 bits.
  uint64_t number(const json& object, const char* key) const {
    const json& value = member(object, key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= uint64_t{1} << 53)
      refuse(fmt::format("has a `{}` that is not a count", key));
    return value.get<uint64_t>();
  }

  const json& list(const json& object, const char* key) const {
    const json& value = member(object, key);
    if (!value.is_array()) refuse(fmt::format("has a `{}` that is not a list", key));
    return value;
  }

  std::string file_name(const json& object) const {
    std::string value = text(object, "file");
    if (value.empty() || value.starts_with(".") || value.find('/') != std::string::npos ||
        value.find('\0') != std::string::npos)
      refuse("names a file outside its folder");
    return value;
  }

  void read_tokenizer(const json& part, TokenManifest::TokenizerPart& tokenizer) const {
    tokenizer.kind = text(part, "kind");
    tokenizer.vocab_size = static_cast<int64_t>(number(part, "vocab_size"));
    tokenizer.trained_on_bytes = number(part, "trained_on_bytes");
    if (tokenizer.kind == "bytes") return;
    tokenizer.file = file_name(part);
    tokenizer.sha256 = digest(part, "sha256");
  }

  void read_split(const json& part, TokenManifest::SplitPart& split) const {
    split.tokens = number(part, "tokens");
    split.text_bytes = number(part, "text_bytes");
    uint64_t tokens = 0, text_bytes = 0;
    for (const json& entry : list(part, "shards")) {
      split.shards.push_back({file_name(entry), number(entry, "tokens"),
                              number(entry, "text_bytes"), digest(entry, "sha256")});
      tokens += split.shards.back().tokens;
      text_bytes += split.shards.back().text_bytes;
    }
    if (tokens != split.tokens || text_bytes != split.text_bytes)
      refuse("has sums that differ from its shards");
  }

  const std::string& name_;
};

}  // namespace

TokenManifest parse_manifest(std::string_view content, const std::string& name) {
  return Reader(name).read(content);
}

std::string write_manifest(const TokenManifest& manifest) {
  const auto& tokenizer = manifest.tokenizer;
  json root = {{"format", kFormat},
               {"version", kVersion},
               {"fingerprint", manifest.fingerprint},
               {"settings", json::parse(manifest.settings)},
               {"documents", manifest.documents},
               {"duplicates_skipped", manifest.duplicates_skipped},
               {"oversized_skipped", manifest.oversized_skipped},
               {"invalid_skipped", manifest.invalid_skipped}};
  if (manifest.empty_skipped > 0) root["empty_skipped"] = manifest.empty_skipped;
  if (manifest.bad_skipped > 0) root["bad_skipped"] = manifest.bad_skipped;
  root["tokenizer"] = {{"kind", tokenizer.kind},
                       {"vocab_size", tokenizer.vocab_size},
                       {"trained_on_bytes", tokenizer.trained_on_bytes}};
  if (!tokenizer.file.empty()) {
    root["tokenizer"]["file"] = tokenizer.file;
    root["tokenizer"]["sha256"] = tokenizer.sha256;
  }
  for (int s = 0; s < 2; ++s) {
    const auto& split = manifest.splits[s];
    json shards = json::array();
    for (const auto& shard : split.shards)
      shards.push_back({{"file", shard.file},
                        {"tokens", shard.tokens},
                        {"text_bytes", shard.text_bytes},
                        {"sha256", shard.sha256}});
    root[kSplitNames[s]] = {
        {"tokens", split.tokens}, {"text_bytes", split.text_bytes}, {"shards", shards}};
  }
  json sources = json::array();
  for (const auto& source : manifest.sources)
    sources.push_back({{"path", source.path}, {"bytes", source.bytes}, {"sha256", source.sha256}});
  root["sources"] = sources;
  return root.dump(1) + "\n";
}

}  // namespace dovetail::data
