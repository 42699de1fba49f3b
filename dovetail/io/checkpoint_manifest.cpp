#include "dovetail/io/checkpoint_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/json_fault.h"

namespace dovetail::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "dovetail.checkpoint";
/// Versions by content. A program that does not know a version refuses it. In order: all rows, rows
/// of a delta, keys of a delta, updated rows only.
constexpr int64_t kFullVersion = 1, kDeltaVersion = 2, kKeysVersion = 3, kVersion = 4;
constexpr const char* kManifestName = "manifest.json";
constexpr std::string_view kStepPrefix = "step-";

/// Hash of the compact dump, in which nlohmann orders keys. Formatting may change, content may not.
std::string checksum_of(nlohmann::json content) {
  content.erase("checksum");
  return sha256_of(content.dump());
}

int64_t version_of(const CheckpointManifest& manifest) {
  if (!manifest.base) return manifest.rows_of.empty() ? kFullVersion : kVersion;
  const auto has_keys = [&](const auto& rows) { return manifest.rows_of.contains(rows.second); };
  return std::ranges::any_of(manifest.rows_of, has_keys) ? kKeysVersion : kDeltaVersion;
}

nlohmann::json encode(const std::vector<ManifestFile>& files) {
  auto list = nlohmann::json::array();
  for (const auto& file : files)
    list.push_back({{"name", file.name},
                    {"bytes", file.bytes},
                    {"sha256", file.sha256},
                    {"tensors", file.tensors}});
  return list;
}

ManifestFile decode_file(const nlohmann::json& file) {
  return {file.at("name").get<std::string>(), file.at("bytes").get<uint64_t>(),
          file.at("sha256").get<std::string>(), file.at("tensors").get<std::vector<std::string>>()};
}

CheckpointManifest decode(const nlohmann::json& content, const fs::path& checkpoint) {
  CheckpointManifest manifest;
  manifest.step = content.at("step").get<int64_t>();
  manifest.state = content.at("state");
  manifest.checksum = content.at("checksum").get<std::string>();
  if (content.contains("base")) {
    const auto& base = content["base"];
    manifest.base = {.step = base.at("step").get<int64_t>(),
                     .checksum = base.at("checksum").get<std::string>()};
    user_check(manifest.base->step < manifest.step,
               "{}: a delta of step {} cannot build on step {}", checkpoint.string(), manifest.step,
               manifest.base->step);
  }
  if (manifest.base || content.contains("rows_of"))
    manifest.rows_of = content.at("rows_of").get<std::map<std::string, std::string>>();
  for (const auto& file : content.at("files")) {
    manifest.files.push_back(decode_file(file));
    const auto& name = manifest.files.back().name;
    user_check(!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos,
               "{}: file name '{}' leaves the folder", checkpoint.string(), name);
  }
  return manifest;
}

}  // namespace

std::string manifest_text(CheckpointManifest& manifest) {
  nlohmann::json content = {{"format", kFormat},
                            {"version", version_of(manifest)},
                            {"step", manifest.step},
                            {"state", manifest.state}};
  if (manifest.base)
    content["base"] = {{"step", manifest.base->step}, {"checksum", manifest.base->checksum}};
  if (manifest.base || !manifest.rows_of.empty()) content["rows_of"] = manifest.rows_of;
  content["files"] = encode(manifest.files);
  try {
    // JSON has no NaN or infinity. nlohmann writes null, which would be read as something else.
    user_check(nlohmann::json::parse(manifest.state.dump()) == manifest.state,
               "the state of step {} has a value that JSON cannot hold (NaN or infinity)",
               manifest.step);
    manifest.checksum = checksum_of(content);
    content["checksum"] = manifest.checksum;
    return content.dump(1) + "\n";
  } catch (const nlohmann::json::exception&) {
    throw UserError(
        fmt::format("the state or a tensor name of step {} is not valid UTF-8", manifest.step));
  }
}

std::string part_text(const CheckpointManifest& part) try {
  return nlohmann::json{{"files", encode(part.files)}, {"rows_of", part.rows_of}}.dump();
} catch (const nlohmann::json::exception&) {
  throw UserError(fmt::format("a tensor name of step {} is not valid UTF-8", part.step));
}

void add_part(CheckpointManifest& manifest, const std::string& text) {
  const nlohmann::json part = nlohmann::json::parse(text);
  for (const auto& file : part["files"]) manifest.files.push_back(decode_file(file));
  manifest.rows_of.merge(part["rows_of"].get<std::map<std::string, std::string>>());
}

CheckpointManifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifestName;
  std::error_code ignored;
  user_check(fs::is_directory(checkpoint, ignored), "{}: no such checkpoint folder",
             checkpoint.string());
  user_check(fs::is_regular_file(path, ignored), "{}: not a Dovetail checkpoint: it has no {}",
             checkpoint.string(), kManifestName);
  nlohmann::json content;
  try {
    content = nlohmann::json::parse(read_file(path));
  } catch (const nlohmann::json::exception& error) {
    throw UserError(
        fmt::format("{}: the manifest is damaged ({})", checkpoint.string(), json_fault(error)));
  }
  user_check(content.is_object() && content.value("format", nlohmann::json()) == kFormat,
             "{}: not a Dovetail checkpoint: {} is another program's", checkpoint.string(),
             kManifestName);
  // Check the version before the checksum, which a later version may compute differently.
  const auto version = content.value("version", nlohmann::json());
  user_check(version.is_number_integer() && version.get<int64_t>() >= 1,
             "{}: the manifest is damaged (no version)", checkpoint.string());
  user_check(version.get<int64_t>() <= kVersion,
             "{}: written by a newer Dovetail (checkpoint version {}, this one reads {})",
             checkpoint.string(), version.get<int64_t>(), kVersion);
  user_check(content.value("checksum", nlohmann::json()) == checksum_of(content),
             "{}: the manifest is damaged (its checksum differs)", checkpoint.string());
  CheckpointManifest manifest;
  try {
    manifest = decode(content, checkpoint);
  } catch (const nlohmann::json::exception& error) {
    throw UserError(
        fmt::format("{}: the manifest is incomplete ({})", checkpoint.string(), json_fault(error)));
  }
  const auto named = step_of_name(fs::absolute(checkpoint).lexically_normal().filename().string());
  user_check(!named || *named == manifest.step, "{}: holds step {}, not what its name says",
             checkpoint.string(), manifest.step);
  return manifest;
}

void verify_files(const fs::path& checkpoint, const CheckpointManifest& manifest) {
  for (const auto& file : manifest.files) {
    const fs::path path = checkpoint / file.name;
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    user_check(!error, "{}: {} is missing", checkpoint.string(), file.name);
    user_check(bytes == file.bytes, "{}: {} is {} ({} bytes of {})", checkpoint.string(), file.name,
               bytes < file.bytes ? "cut short" : "too long", bytes, file.bytes);
    user_check(sha256_of_file(path) == file.sha256, "{}: {} is damaged (its sha256 differs)",
               checkpoint.string(), file.name);
  }
}

std::string step_name(int64_t step) { return fmt::format("{}{:08}", kStepPrefix, step); }

std::optional<int64_t> step_of_name(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kStepPrefix.size(), end, step);
  if (parsed.ec != std::errc() || parsed.ptr != end || step < 0 || step_name(step) != name)
    return std::nullopt;
  return step;
}

std::vector<int64_t> steps_in(const fs::path& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (const auto step = step_of_name(entry->path().filename().string())) steps.push_back(*step);
  user_check(!error || error == std::errc::no_such_file_or_directory, "{}: cannot list: {}",
             folder.string(), error.message());
  std::ranges::sort(steps);
  return steps;
}

}  // namespace dovetail::io
