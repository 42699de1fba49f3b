#include "dovetail/data/text/prepared_by.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/text/manifest.h"

namespace dovetail::data {
namespace {

UserError prepared_otherwise(const std::string& key, const std::string& asked,
                             const std::filesystem::path& folder, const std::string& there) {
  return UserError(
      fmt::format("data.{} = {} does nothing: {} was prepared {}", key, asked, folder.string(),
                  there),
      fmt::format("name the text to prepare it anew (data.text), or leave data.{} out", key));
}

void check_tokenizer_file(const std::string& file, const std::filesystem::path& folder,
                          const TokenManifest& manifest, const nlohmann::json& settings) {
  if (file.empty()) return;
  const std::string sha256 = sha256_of_file(file);
  if (sha256 == manifest.tokenizer.sha256 || settings.value("sha256", "") == sha256) return;
  throw prepared_otherwise("tokenizer.path", fmt::format("\"{}\"", file), folder,
                           "with another tokenizer");
}

}  // namespace

void check_prepared_by(const DataConfig& config, const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / TokenManifest::kFile;
  const TokenManifest manifest = parse_manifest(read_file(path), path.string());
  const nlohmann::json settings = nlohmann::json::parse(manifest.settings),
                       tokenizer = settings.value("tokenizer", nlohmann::json::object());
  const DataConfig none;
  const auto compare = [&](const char* key, const nlohmann::json& asked,
                           const nlohmann::json& usual, const nlohmann::json& there,
                           const char* name) {
    if (asked == usual || (there.contains(name) && there[name] == asked)) return;
    throw prepared_otherwise(
        key, asked.dump(), folder,
        there.contains(name) ? fmt::format("with {}", there[name].dump()) : "without it");
  };
  const TokenizerConfig &asked = config.tokenizer, &usual = none.tokenizer;
  compare("tokenizer.kind", asked.kind, usual.kind, tokenizer, "kind");
  compare("tokenizer.vocab_size", asked.vocab_size, usual.vocab_size, tokenizer, "vocab_size");
  compare("tokenizer.split", asked.split, usual.split, tokenizer, "split");
  check_tokenizer_file(asked.path, folder, manifest, tokenizer);
  compare("text_field", config.text_field, none.text_field, settings, "text_field");
  compare("validation_fraction", config.validation_fraction, none.validation_fraction, settings,
          "validation_fraction");
  compare("validation_split", config.validation_split, none.validation_split, settings,
          "validation_split");
  compare("deduplicate", config.deduplicate, none.deduplicate, settings, "deduplicate");
  compare("max_document_bytes", config.max_document_bytes, none.max_document_bytes, settings,
          "max_document_bytes");
  compare("bad_row", config.bad_row, none.bad_row, settings, "bad_row");
  if (static_cast<int64_t>(manifest.bad_skipped) > config.max_bad_rows)
    throw prepared_otherwise("max_bad_rows", std::to_string(config.max_bad_rows), folder,
                             fmt::format("with {} bad records", manifest.bad_skipped));
}

}  // namespace dovetail::data
