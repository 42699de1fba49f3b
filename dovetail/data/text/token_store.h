#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/data/text/tokenizer.h"

namespace dovetail::data {

enum class Split { kTrain, kValidation };

/// Folder that `prepare` has written, opened and memory-mapped. The constructor checks it against
/// its manifest: sizes always, checksums on request. Throws UserError with file and reason if the
/// folder is missing, truncated, of another version or not a prepared folder.
class TokenStore {
 public:
  enum class Verify { kSizes, kChecksums };
  explicit TokenStore(const std::filesystem::path& folder, Verify verify = Verify::kSizes);

  int64_t num_tokens(Split split) const;
  /// Returns the bytes of text that the split's tokens encode (for nats per byte).
  uint64_t num_bytes(Split split) const;
  int64_t vocab_size() const { return tokenizer_->vocab_size(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::string& sha256() const { return sha256_; }
  const std::filesystem::path& folder() const { return folder_; }

  /// Copies tokens [begin, begin + count) of the split to `out`. The split's shards count as one
  /// sequence. Throws InternalError if the range is outside of the split.
  void read(Split split, int64_t begin, int64_t count, int64_t* out) const;

 private:
  struct Shard {
    MappedFile file;
    int64_t begin = 0, count = 0;
    int width = 2;  ///< bytes per token
  };
  std::vector<Shard> shards_[2];
  uint64_t bytes_[2] = {0, 0};
  std::unique_ptr<Tokenizer> tokenizer_;
  std::string sha256_;
  std::filesystem::path folder_;
};

}  // namespace dovetail::data
