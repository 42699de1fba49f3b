#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dovetail/data/text/data_config.h"
#include "dovetail/data/text/inputs.h"

namespace dovetail {

struct PrepareProgress {
  int64_t documents_done = 0, documents = 0;
  uint64_t bytes_done = 0, bytes = 0;
  const char* stage = "";  ///< "reading", "training the tokenizer", "tokenizing"
};

struct PrepareResult {
  std::filesystem::path folder;
  int64_t documents = 0, train_tokens = 0, validation_tokens = 0;
  uint64_t train_bytes = 0, validation_bytes = 0;
  int64_t duplicates_skipped = 0, oversized_skipped = 0, invalid_skipped = 0;
  int64_t empty_skipped = 0;  ///< records and files without text: "" and null
  int64_t bad_skipped = 0;    ///< records that data.bad_row = "skip" left out
  std::vector<PassedOver> passed_over;
  std::string sha256;   ///< of the manifest
  bool reused = false;  ///< the folder was already up to date
};

/// Text to memory-mapped token shards in `folder`: manifest.json (settings, documents' relative
/// paths and hashes, counts, checksum of each shard), tokenizer file, train-*.tokens,
/// validation-*.tokens. Parallel; a run that was killed goes on from its finished shards; a folder
/// already made from the same files and settings is left as it is. Documents are ordered by
/// relative path, so the result does not depend on threads. Throws UserError on unreadable or
/// unmatched input.
PrepareResult prepare(const DataConfig& config, const std::filesystem::path& folder,
                      const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace dovetail
