#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dovetail/data/config.h"

namespace dovetail {

enum class InputFormat { kText, kJsonLines, kParquet };

struct InputFile {
  std::filesystem::path path;  ///< where it is now; never written down
  std::string relative;  ///< its identity: path below the folder, the glob's fixed part or the list's root, with '/'
  uint64_t bytes = 0;
  InputFormat format = InputFormat::kText;
};

/// The files that `config.text` or `config.file_list` means, ordered by relative path, each once.
///
/// A file that is named, matched by a glob or listed is taken whatever its name; a folder is searched to any depth for
/// the extensions of text, source code, .jsonl and .parquet, leaving out names that begin with a dot.
/// Globs: `*`, `?`, `[...]` within a name, `**` for any folders.
/// Throws UserError for an entry that is absent, unreadable or matches nothing.
std::vector<InputFile> list_inputs(const DataConfig& config);

/// The extensions that a search of a folder takes, with their dots.
const std::vector<std::string>& text_extensions();

}  // namespace dovetail
