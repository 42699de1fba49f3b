#include "dovetail/data/text/tokenizer_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_map>

#include "dovetail/base/error.h"
#include "dovetail/base/json_fault.h"
#include "dovetail/data/text/byte_level.h"

namespace dovetail::data {
namespace {

using nlohmann::json;

/// Returns a value for an error message: short, and in ASCII so that cutting it breaks no
/// character.
std::string shown_json(const json& value) { return value.dump(-1, ' ', true).substr(0, 80); }

class TokenizerReader {
 public:
  explicit TokenizerReader(std::string name) : name_(std::move(name)) {}

  BpeFile read(std::string_view content) {
    json root;
    try {
      root = json::parse(content);
    } catch (const json::exception& e) {
      refuse(fmt::format("is not valid JSON: {}", json_fault(e)));
    }
    if (!root.is_object()) refuse("is not a JSON object");
    for (const char* key : {"truncation", "padding", "normalizer"}) require_null(root, key, "");
    read_decoder(root);
    BpeFile file;
    file.split = read_pre_tokenizer(root);
    read_model(member(root, "model", "the file"), file);
    read_added_tokens(root, file);
    if (!unspelled_.empty())
      refuse(fmt::format("has token {}, which neither spells bytes nor is an added token",
                         *unspelled_.begin()));
    return file;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(
        fmt::format("tokenizer.json {}", what),
        "byte-level BPE as GPT-2 and Llama-3 use it is supported; or use a SentencePiece model",
        name_);
  }

  const json& member(const json& object, const char* key, std::string_view where) const {
    const auto it = object.is_object() ? object.find(key) : object.end();
    if (!object.is_object() || it == object.end())
      refuse(fmt::format("has no `{}` in {}", key, where));
    return *it;
  }

  std::string text_member(const json& object, const char* key, std::string_view where) const {
    const json& value = member(object, key, where);
    if (!value.is_string())
      refuse(fmt::format("has a `{}` in {} that is not a string", key, where));
    return value.get<std::string>();
  }

  bool flag(const json& object, const char* key, bool otherwise) const {
    const auto it = object.find(key);
    if (it == object.end() || it->is_null()) return otherwise;
    if (!it->is_boolean()) refuse(fmt::format("has a `{}` that is neither true nor false", key));
    return it->get<bool>();
  }

  void require_null(const json& object, const char* key, std::string_view where) const {
    const auto it = object.find(key);
    if (it == object.end() || it->is_null()) return;
    const json& shown_part = it->is_object() && it->contains("type") ? (*it)["type"] : *it;
    refuse(
        fmt::format("has `{}{}` {}, which is not supported", where, key, shown_json(shown_part)));
  }

  void require_false(const json& object, const char* key, std::string_view where) const {
    if (flag(object, key, false))
      refuse(fmt::format("has `{}` in {}, which is not supported", key, where));
  }

  void read_decoder(const json& root) const {
    const std::string type = text_member(member(root, "decoder", "the file"), "type", "decoder");
    if (type != "ByteLevel") refuse(fmt::format("has the decoder {}, not ByteLevel", type));
  }

  /// Accepts ByteLevel with its own pattern, or Sequence [Split by a known pattern, ByteLevel
  /// without one].
  SplitPattern read_pre_tokenizer(const json& root) const {
    const json& outer = member(root, "pre_tokenizer", "the file");
    const std::string type = text_member(outer, "type", "pre_tokenizer");
    if (type == "ByteLevel") {
      if (!read_byte_level(outer))
        refuse("has the pre_tokenizer ByteLevel without a split (use_regex = false)");
      return SplitPattern::kGpt2;
    }
    if (type != "Sequence")
      refuse(fmt::format("has the pre_tokenizer {}, which is not supported", type));
    const json& parts = member(outer, "pretokenizers", "pre_tokenizer");
    if (!parts.is_array() || parts.size() != 2 ||
        text_member(parts[0], "type", "pre_tokenizer") != "Split" ||
        text_member(parts[1], "type", "pre_tokenizer") != "ByteLevel")
      refuse("has a pre_tokenizer Sequence other than [Split, ByteLevel]");
    if (read_byte_level(parts[1])) refuse("splits twice: by Split and by ByteLevel with use_regex");
    return read_split(parts[0]);
  }

  /// Returns use_regex.
  bool read_byte_level(const json& part) const {
    if (flag(part, "add_prefix_space", true))
      refuse("has add_prefix_space in the pre_tokenizer ByteLevel, which is not supported");
    return flag(part, "use_regex", true);
  }

  SplitPattern read_split(const json& part) const {
    if (text_member(part, "behavior", "Split") != "Isolated" || flag(part, "invert", false))
      refuse("has a Split that is not `Isolated` or is inverted");
    const std::string regex =
        text_member(member(part, "pattern", "Split"), "Regex", "the pattern of Split");
    for (const SplitPattern known : {SplitPattern::kGpt2, SplitPattern::kLlama3})
      if (regex == split_regex(known)) return known;
    refuse(fmt::format("splits by the pattern {}, which is neither GPT-2's nor Llama-3's", regex));
  }

  void read_model(const json& model, BpeFile& file) {
    if (!model.is_object()) refuse("has a model that is not an object");
    // Files from before other models existed leave the type out.
    if (model.contains("type") && text_member(model, "type", "model") != "BPE")
      refuse(fmt::format("has the model {}, not BPE", shown_json(model["type"])));
    for (const char* key : {"dropout", "unk_token"}) require_null(model, key, "model.");
    for (const char* key : {"byte_fallback", "fuse_unk"}) require_false(model, key, "model");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (model.value(key, json()) != "") require_null(model, key, "model.");
    file.ignore_merges = flag(model, "ignore_merges", false);
    read_vocabulary(member(model, "vocab", "model"), file);
    read_merges(member(model, "merges", "model"), file);
  }

  int32_t token_id(const json& value, size_t entries) const {
    // Holes are allowed. A vocabulary of mostly holes is a broken file, which would cost its
    // memory.
    const uint64_t limit = 2 * entries + 1024;
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= limit)
      refuse(fmt::format("has the token id {} with {} tokens", shown_json(value), entries));
    return value.get<int32_t>();
  }

  void put(BpeFile& file, int32_t id, std::string bytes) {
    const auto index = static_cast<size_t>(id);
    if (file.tokens.size() <= index) {
      file.tokens.resize(index + 1);
      taken_.resize(index + 1);
    }
    if (taken_[index]) refuse(fmt::format("gives the token id {} twice", id));
    taken_[index] = true;
    file.tokens[index] = std::move(bytes);
  }

  void read_vocabulary(const json& vocabulary, BpeFile& file) {
    if (!vocabulary.is_object() || vocabulary.empty())
      refuse("has a model.vocab that is not an object of tokens");
    for (const auto& [spelling, value] : vocabulary.items()) {
      const int32_t id = token_id(value, vocabulary.size());
      auto bytes = byte_level_bytes(spelling);
      if (!bytes) unspelled_.insert(id);
      put(file, id, std::move(bytes).value_or(""));
      id_of_spelling_.emplace(spelling, id);
    }
    for (size_t byte = 0; byte < file.byte_ids.size(); ++byte) {
      const auto it =
          id_of_spelling_.find(byte_level_spelling(std::string(1, static_cast<char>(byte))));
      if (it == id_of_spelling_.end())
        refuse(
            fmt::format("has no token for byte 0x{:02X}, so text would be lost (a trainer needs "
                        "the whole alphabet: initial_alphabet = ByteLevel.alphabet())",
                        byte));
      file.byte_ids[byte] = it->second;
    }
  }

  int32_t id_of(const std::string& spelling) const {
    const auto it = id_of_spelling_.find(spelling);
    if (it == id_of_spelling_.end())
      refuse(fmt::format("merges `{}`, which is not in model.vocab", spelling));
    return it->second;
  }

  /// Reads merges, which are "a b" in older files and ["a", "b"] since tokenizers 0.20.
  void read_merges(const json& merges, BpeFile& file) const {
    if (!merges.is_array()) refuse("has model.merges that are not an array");
    for (const json& merge : merges) {
      std::optional<std::pair<std::string, std::string>> pair;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        pair.emplace(merge[0].get<std::string>(), merge[1].get<std::string>());
      } else if (merge.is_string()) {
        const auto text = merge.get<std::string>();
        const size_t space = text.find(' ');
        if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
          pair.emplace(text.substr(0, space), text.substr(space + 1));
      }
      if (!pair) refuse(fmt::format("has the merge {}, which is not a pair", shown_json(merge)));
      file.merges.push_back(
          {id_of(pair->first), id_of(pair->second), id_of(pair->first + pair->second)});
    }
  }

  void read_added_tokens(const json& root, BpeFile& file) {
    const auto it = root.find("added_tokens");
    if (it == root.end() || it->is_null()) return;
    if (!it->is_array()) refuse("has added_tokens that are not an array");
    for (const json& entry : *it) {
      BpeFile::Added token;
      token.content = text_member(entry, "content", "added_tokens");
      if (token.content.empty()) refuse("has an added token without content");
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        require_false(entry, key, "added_tokens");
      token.special = flag(entry, "special", false);
      token.normalized = flag(entry, "normalized", !token.special);
      token.id = token_id(member(entry, "id", "added_tokens"), file.tokens.size() + it->size());
      const auto known = id_of_spelling_.find(token.content);
      if (known == id_of_spelling_.end()) {
        put(file, token.id, token.content);
        id_of_spelling_.emplace(token.content, token.id);
      } else {
        if (known->second != token.id)
          refuse(
              fmt::format("numbers the added token {} differently in model.vocab", token.content));
        file.tokens[static_cast<size_t>(token.id)] = token.content;
        unspelled_.erase(token.id);
      }
      file.added.push_back(std::move(token));
    }
  }

  std::string name_;
  std::vector<bool> taken_;
  std::unordered_map<std::string, int32_t> id_of_spelling_;
  std::set<int32_t> unspelled_;  ///< tokens that must turn out to be added tokens
};

json byte_level_json(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

json pre_tokenizer_json(SplitPattern split) {
  if (split == SplitPattern::kGpt2) return byte_level_json(true);
  const json cut = {{"type", "Split"},
                    {"pattern", {{"Regex", split_regex(split)}}},
                    {"behavior", "Isolated"},
                    {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", json::array({cut, byte_level_json(false)})}};
}

}  // namespace

BpeFile parse_tokenizer_json(std::string_view content, const std::string& name) {
  return TokenizerReader(name).read(content);
}

std::string write_tokenizer_json(const BpeFile& file) {
  std::vector<std::string> spelling;
  spelling.reserve(file.tokens.size());
  for (const std::string& token : file.tokens) spelling.push_back(byte_level_spelling(token));
  for (const auto& token : file.added) spelling[static_cast<size_t>(token.id)] = token.content;

  json vocabulary = json::object();
  for (size_t id = 0; id < spelling.size(); ++id) vocabulary[spelling[id]] = id;
  json merges = json::array();
  for (const auto& merge : file.merges)
    merges.push_back(
        {spelling[static_cast<size_t>(merge.left)], spelling[static_cast<size_t>(merge.right)]});
  json added = json::array();
  for (const auto& token : file.added)
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", token.normalized},
                     {"special", token.special}});

  const json root = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", pre_tokenizer_json(file.split)},
                     {"post_processor", nullptr},
                     {"decoder", byte_level_json(true)},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", file.ignore_merges},
                       {"vocab", vocabulary},
                       {"merges", merges}}}};
  return root.dump() + "\n";
}

}  // namespace dovetail::data
