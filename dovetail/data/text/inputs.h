#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/files/open_input.h"
#include "dovetail/data/text/data_config.h"

namespace dovetail {

enum class InputFormat { kText, kJsonLines, kJsonArray, kParquet };

struct InputFile {
  std::filesystem::path path;  ///< where it is now; never written down
  std::string relative;  ///< its identity: path below the folder, the glob's fixed part or the
                         ///< list's root, with '/'
  uint64_t bytes = 0;    ///< size of the file
  uint64_t text_bytes =
      0;  ///< size unpacked and as UTF-8; until the file is opened, the same as `bytes`
  InputFormat format = InputFormat::kText;
  InputHead head;
  std::shared_ptr<const MappedInput> content;  ///< JSON that is packed or UTF-16, once opened
};

/// A file that a search found and that is not read.
struct PassedOver {
  std::string relative, reason;
};

struct Inputs {
  std::vector<InputFile> files;  ///< by relative path, each once
  std::vector<PassedOver> passed_over;
};

/// The files that `config.text` or `config.file_list` means.
///
/// A file that is named, matched by a glob or listed is taken whatever its name. A folder is
/// searched to any depth for the extensions of text, source code, .jsonl, .ndjson and .parquet,
/// also packed (.jsonl.gz). Names that begin with a dot are left out. Globs: `*`, `?`, `[...]`
/// within a name, `**` for any folders. First bytes tell Parquet, packed and binary files;
/// extensions tell JSON from other text. Folders and globs pass over files that are no text. Throws
/// UserError for an entry that is absent, unreadable or matches nothing, and for a named or listed
/// file that is no text.
Inputs list_inputs(const DataConfig& config);

/// "passed over 3 files: a.png (no extension of a text), ..."; empty if there are none.
std::string describe_passed_over(const std::vector<PassedOver>& files);

/// The extensions that a search of a folder takes: lower case, with their dots.
const std::vector<std::string>& text_extensions();

}  // namespace dovetail
