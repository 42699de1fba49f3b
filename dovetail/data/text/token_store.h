#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/data/text/tokenizer.h"

namespace dovetail::data {

/// Part of a data set: to train on, or held out for validation.
enum class Split { kTrain, kValidation };

/// Prepared folder (written by `prepare`), opened for reading. Its token shards are memory-mapped.
/// The constructor checks the folder against its manifest.json. It throws UserError, with file and
/// reason, if the folder is missing, truncated or damaged. It also throws if the folder is not a
/// prepared folder or has another version.
class TokenStore {
 public:
  /// Checks of the shards. kSizes: their sizes and headers. kChecksums: also their SHA-256, and
  /// that each token is in the vocabulary, which reads all bytes.
  enum class Verify { kSizes, kChecksums };
  explicit TokenStore(const std::filesystem::path& folder, Verify verify = Verify::kSizes);

  int64_t num_tokens(Split split) const;
  /// Returns the bytes of text that the split's tokens encode. Needed for the loss in nats per
  /// byte.
  uint64_t num_bytes(Split split) const;
  int64_t vocab_size() const { return tokenizer_->vocab_size(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  /// Returns the SHA-256 of manifest.json, which identifies the data set.
  const std::string& sha256() const { return sha256_; }
  const std::filesystem::path& folder() const { return folder_; }

  /// Copies tokens [begin, begin + count) of the split to `out`. The split's shards count as one
  /// sequence. Throws InternalError if the range is outside of the split.
  void read(Split split, int64_t begin, int64_t count, int64_t* out) const;

 private:
  struct Shard {
    MappedFile file;
    int64_t begin = 0, count = 0;  ///< position of its first token in the split; number of tokens
    int width = 2;                 ///< bytes per token
  };
  std::vector<Shard> shards_[2];
  uint64_t bytes_[2] = {0, 0};
  std::unique_ptr<Tokenizer> tokenizer_;
  std::string sha256_;
  std::filesystem::path folder_;
};

}  // namespace dovetail::data
