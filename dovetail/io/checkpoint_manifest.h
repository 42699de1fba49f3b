#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace dovetail::io {

/// One safetensors file of a checkpoint.
struct ManifestFile {
  std::string name;                  ///< file name, without a folder
  uint64_t bytes = 0;                ///< size of the file
  std::string sha256;                ///< SHA-256 of the file, in hex
  std::vector<std::string> tensors;  ///< names of the tensors in the file, ascending
};

/// Checkpoint that a delta builds on. (A delta stores only changed rows; see CheckpointKind in
/// checkpoint.h.)
struct ManifestBase {
  int64_t step = 0;
  std::string checksum;  ///< CheckpointManifest::checksum of that checkpoint
};

/// Content of `manifest.json`, a file in each checkpoint folder. It lists all files that a complete
/// folder must hold.
struct CheckpointManifest {
  int64_t step = 0;
  std::vector<ManifestFile> files;
  nlohmann::json state;                   ///< Snapshot::state
  std::optional<ManifestBase> base = {};  ///< set only for a delta
  /// Tensors that this checkpoint stores only in part. Maps the name of such a tensor to the name
  /// of the tensor with its row numbers: (n) int64, ascending. Row i of the stored tensor is row
  /// numbers[i] of the whole tensor.
  ///
  /// - A full checkpoint stores the rows that training has updated. Its reader knows the values of
  ///   all other rows.
  /// - A delta stores the rows that changed.
  ///
  /// Rows of a hashed table have 64-bit keys instead of numbers, ascending as unsigned integers. In
  /// a delta, this map then has one more entry per such table. The entry maps the name of the
  /// tensor of keys to the name of the tensor of removed keys. The table no longer has rows with
  /// the removed keys.
  std::map<std::string, std::string> rows_of = {};
  std::string checksum = {};  ///< sha256 of the other members as JSON
};

/// Returns the text of `manifest.json` and sets `manifest.checksum`. Throws UserError if JSON
/// cannot represent the state exactly (NaN, infinity, invalid UTF-8).
std::string manifest_text(CheckpointManifest& manifest);

/// Returns `files` and `rows_of` as text. Another process adds them to its manifest with
/// `add_part`. Throws UserError if a tensor name is not valid UTF-8.
std::string part_text(const CheckpointManifest& part);
/// Adds files and rows_of of `text`, which part_text has returned, to `manifest`.
void add_part(CheckpointManifest& manifest, const std::string& text);

/// Reads and checks the manifest of the checkpoint folder `checkpoint`; ignores its other files.
/// Throws UserError if the manifest is absent, belongs to another program, is newer than this
/// program or is damaged. Also throws if its step differs from the step in the folder's name.
CheckpointManifest read_manifest(const std::filesystem::path& checkpoint);

/// Checks size and sha256 of every file that the manifest lists. Throws UserError, naming the file,
/// if one is missing or differs.
void verify_files(const std::filesystem::path& checkpoint, const CheckpointManifest& manifest);

/// Returns the name of the folder of a step's checkpoint. Example: "step-00001200".
std::string step_name(int64_t step);
/// Returns the step in a name that `step_name` returned. Returns nullopt for any other name.
std::optional<int64_t> step_of_name(const std::string& name);

/// Returns the steps of the complete checkpoints in `folder` (those no longer under a temporary
/// name), ascending. Returns an empty list if `folder` does not exist.
std::vector<int64_t> steps_in(const std::filesystem::path& folder);

}  // namespace dovetail::io
