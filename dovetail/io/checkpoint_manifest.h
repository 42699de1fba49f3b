#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace dovetail {

/// One safetensors file of a checkpoint.
struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;
  std::vector<std::string> tensors;  ///< ascending
};

/// The checkpoint that a delta changes: its step, and the checksum of its manifest.
struct ManifestBase {
  int64_t step = 0;
  std::string checksum;
};

/// `manifest.json`: what a checkpoint's folder must hold to be whole. It carries the sha256 of its
/// own other members.
struct CheckpointManifest {
  int64_t step = 0;
  std::vector<ManifestFile> files;
  nlohmann::json state;
  std::optional<ManifestBase> base = {};  ///< of a delta
  /// Names of tensors with some rows alone, each with the name of a tensor (n) int64, ascending,
  /// that numbers them. A full checkpoint has updated rows; its reader knows the others. A delta
  /// has changed rows. Its numbers may be named themselves: these are keys, ascending without a
  /// sign, and their own numbers are keys without a row anymore.
  std::map<std::string, std::string> rows_of = {};
  std::string checksum = {};  ///< of its text
};

/// Its text, whose checksum it gets. Throws UserError when the state is not exactly representable
/// in JSON (NaN, infinity, invalid UTF-8).
std::string manifest_text(CheckpointManifest& manifest);

/// Reads and checks the manifest alone. Throws UserError: absent, foreign, newer, damaged, of
/// another step than the folder's name.
CheckpointManifest read_manifest(const std::filesystem::path& checkpoint);

/// Checks that every file has its size and sha256. Throws UserError naming the file.
void verify_files(const std::filesystem::path& checkpoint, const CheckpointManifest& manifest);

/// "step-00001200", and back; nullopt for any other name.
std::string step_name(int64_t step);
std::optional<int64_t> step_of_name(const std::string& name);

/// Steps with a final name in `folder`, ascending; none when the folder is absent.
std::vector<int64_t> steps_in(const std::filesystem::path& folder);

}  // namespace dovetail
