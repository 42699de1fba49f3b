#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace dovetail::io {

/// Safetensors file of a checkpoint.
struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;
  std::vector<std::string> tensors;  ///< names, ascending
};

/// Checkpoint that a delta builds on: its step, and the checksum of its manifest.
struct ManifestBase {
  int64_t step = 0;
  std::string checksum;
};

/// Content of `manifest.json`, which lists all that a complete checkpoint folder must hold. It
/// includes the sha256 of its own other members.
struct CheckpointManifest {
  int64_t step = 0;
  std::vector<ManifestFile> files;
  nlohmann::json state;
  std::optional<ManifestBase> base = {};  ///< only in a delta
  /// Map from each tensor with only some rows to the tensor that numbers them: (n) int64,
  /// ascending. A full checkpoint has the updated rows, and its reader knows the others. A delta
  /// has the changed rows. The numbers may be a key of this map, too. Then they are keys of a
  /// hashed table, ascending as unsigned integers. Their own numbers are keys that no longer have a
  /// row.
  std::map<std::string, std::string> rows_of = {};
  std::string checksum = {};  ///< sha256 of the other members
};

/// Returns the text of a manifest and sets its checksum. Throws UserError if JSON cannot represent
/// the state exactly (NaN, infinity, invalid UTF-8).
std::string manifest_text(CheckpointManifest& manifest);

/// Reads and checks only the manifest. Throws UserError if it is absent, belongs to another
/// program, is newer than this program, or is damaged. Also if its step differs from the
/// folder's name.
CheckpointManifest read_manifest(const std::filesystem::path& checkpoint);

/// Checks size and sha256 of every file. Throws UserError that names the file.
void verify_files(const std::filesystem::path& checkpoint, const CheckpointManifest& manifest);

/// Converts a step to a name, "step-00001200", and back. Returns nullopt for any other name.
std::string step_name(int64_t step);
std::optional<int64_t> step_of_name(const std::string& name);

/// Steps with a final name in `folder`, ascending. Empty if the folder is absent.
std::vector<int64_t> steps_in(const std::filesystem::path& folder);

}  // namespace dovetail::io
