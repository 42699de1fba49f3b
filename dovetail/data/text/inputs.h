#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/files/open_input.h"
#include "dovetail/data/text/data_config.h"

namespace dovetail::data {

enum class InputFormat { kText, kJsonLines, kJsonArray, kParquet };

struct InputFile {
  std::filesystem::path path;  ///< current location; never stored
  /// Identity of the file: path relative to the folder, to the glob's fixed part or to the list's
  /// root. Separators are '/'.
  std::string relative;
  uint64_t bytes = 0;  ///< size of the file
  /// Size of the text, decompressed and as UTF-8. Equal to `bytes` until the file is opened.
  uint64_t text_bytes = 0;
  InputFormat format = InputFormat::kText;
  InputHead head;
  std::shared_ptr<const MappedInput> content;  ///< JSON that is compressed or UTF-16, once opened
};

/// File that a search found but that is not read.
struct PassedOver {
  std::string relative, reason;
};

struct Inputs {
  std::vector<InputFile> files;  ///< sorted by relative path, each file once
  std::vector<PassedOver> passed_over;
};

/// Lists the files that `config.text` or `config.file_list` names.
///
/// - A file that is named, matched by a glob or listed is read whatever its name.
/// - A folder is searched at any depth for the extensions of text and source code, .jsonl, .ndjson
///   and .parquet. These may be compressed (.jsonl.gz).
/// - Names that begin with a dot are left out.
/// - Globs: `*`, `?`, `[...]` within a name, `**` for any number of folders.
/// - First bytes identify Parquet, compressed and binary files. Extensions distinguish JSON from
///   other text.
/// - Folders and globs skip files that are not text.
///
/// Throws UserError for an entry that does not exist, cannot be read or matches nothing. Throws
/// UserError for a named or listed file that is not text.
Inputs list_inputs(const DataConfig& config);

/// Returns "passed over 3 files: a.png (no extension of a text), ...", or an empty string if there
/// are no files.
std::string describe_passed_over(const std::vector<PassedOver>& files);

/// Returns the extensions that a search of a folder accepts: lower case, with their dots.
const std::vector<std::string>& text_extensions();

}  // namespace dovetail::data
