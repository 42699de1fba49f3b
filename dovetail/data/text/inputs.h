#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/files/open_input.h"
#include "dovetail/data/text/data_config.h"

namespace dovetail::data {

/// Way in which a file holds documents. kText: the file is one document. kJsonLines: each line is a
/// JSON object with a text. kJsonArray: the file is an array of such objects. kParquet: each row
/// has a text.
enum class InputFormat { kText, kJsonLines, kJsonArray, kParquet };

/// File whose text will be prepared.
struct InputFile {
  std::filesystem::path path;  ///< current location; never stored in the prepared folder
  /// Name of the file in the prepared data, the same wherever the files are stored. Separators are
  /// '/'. The name is
  ///
  /// - the file name, if `config.text` names the file by its own path
  /// - the path relative to the folder, if the file was found in a folder
  /// - the path relative to the glob's fixed part, if a glob matched the file
  /// - the path relative to the list's root, if `config.file_list` names the file
  std::string relative;
  uint64_t bytes = 0;  ///< size of the file
  /// Size of the text, decompressed and as UTF-8. Equal to `bytes` until Corpus has read the file.
  uint64_t text_bytes = 0;
  InputFormat format = InputFormat::kText;
  InputHead head;  ///< compression and encoding
  /// Converted content of JSON that is compressed or UTF-16; null until Corpus has read the file.
  std::shared_ptr<const MappedInput> content;
};

/// File that the search of a folder or a glob found, but that is not read.
struct PassedOver {
  /// `relative` is its name as in InputFile. `reason` says why it is not read. Examples: "no
  /// extension of a text", "a PNG image".
  std::string relative, reason;
};

/// Result of list_inputs.
struct Inputs {
  std::vector<InputFile> files;  ///< sorted by relative path, each file once
  std::vector<PassedOver> passed_over;
};

/// Lists the files that `config.text` or `config.file_list` stands for. An entry of `config.text`
/// is the path of a file, the path of a folder or a glob.
///
/// - A folder is searched at any depth for text, source code, .jsonl, .ndjson and .parquet, by
///   extension (text_extensions). The files may be compressed (.jsonl.gz).
/// - In a glob, `*`, `?` and `[...]` match within a name; `**` matches any number of folders.
/// - A file that an entry or the list names, or that a glob matches, may have any extension.
/// - Folders and globs leave out names that begin with a dot.
/// - The first bytes of a file tell whether it is Parquet, compressed or binary. The extension
///   tells whether a text is JSON.
/// - A file that is neither text nor Parquet is passed over if a folder or glob found it. If an
///   entry or the list names it, throws UserError.
///
/// Also throws UserError for an entry that does not exist, cannot be read or matches nothing.
Inputs list_inputs(const DataConfig& config);

/// Returns a message about files that are not read, or an empty string if there are none. Example:
/// "passed over 3 files: a.png (no extension of a text), ...".
std::string describe_passed_over(const std::vector<PassedOver>& files);

/// Returns the extensions that the search of a folder accepts, in lower case and with their dots.
const std::vector<std::string>& text_extensions();

}  // namespace dovetail::data
