#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/text/documents.h"
#include "dovetail/data/text/prepare.h"
#include "dovetail/data/text/token_store.h"

namespace dovetail::data {

/// Reports progress from any thread, one call at a time.
class ProgressReport {
 public:
  explicit ProgressReport(const std::function<void(const PrepareProgress&)>& callback)
      : callback_(callback) {}
  void begin(const char* stage, int64_t documents, uint64_t bytes);
  void add(int64_t documents, uint64_t bytes);

 private:
  const std::function<void(const PrepareProgress&)>& callback_;
  std::mutex mutex_;
  PrepareProgress now_;
};

/// Returns a number in [0, 1) that depends on `key` alone: the first 53 bits of its SHA-256.
double hashed_share(std::string_view key);

/// Text that goes into a token store: all documents of the inputs that are not skipped. Assigns
/// each part of a document to a split. The result depends on the files' content and the config, not
/// on the number of threads.
class Corpus {
 public:
  /// Lists and hashes the inputs. `lossless`: the tokenizer accepts text that is not UTF-8.
  Corpus(const DataConfig& config, bool lossless, ProgressReport& progress);

  struct Source {
    InputFile input;
    std::string sha256;       ///< SHA-256 of the file
    std::string text_sha256;  ///< SHA-256 of the document, for a text file
    bool valid = true;        ///< the text is UTF-8; checked for text files only
    /// Returns how the file is read, if its name does not tell: kind, packing, bytes of the text.
    /// Otherwise returns an empty string.
    std::string reading() const;
  };
  const std::vector<Source>& sources() const { return sources_; }
  const std::vector<PassedOver>& passed_over() const { return passed_over_; }

  /// Decides which documents are skipped. Call it once, before the members below. Throws UserError
  /// for a bad record if bad_row = "error", or for more than `max_bad_rows` of them if bad_row =
  /// "skip". Warns about skipped records and about texts that are not UTF-8.
  void scan();
  const std::vector<Piece>& pieces() const { return pieces_; }
  /// Returns a SHA-256 that identifies the content that `read` passes on and its split, for given
  /// settings.
  std::string fingerprint(size_t piece) const;
  /// Calls `visit` with each part of the kept documents, in order. A document that is cut between
  /// the splits has two parts. Parts are not empty.
  void read(size_t piece,
            const std::function<void(Split, std::string_view text, const std::string& identity)>&
                visit) const;

  int64_t documents() const { return documents_; }
  int64_t duplicates_skipped() const { return duplicates_; }
  int64_t oversized_skipped() const { return oversized_; }
  int64_t invalid_skipped() const { return invalid_; }
  int64_t empty_skipped() const { return empty_; }  ///< empty texts and null
  int64_t bad_skipped() const { return bad_; }

 private:
  struct Digest {
    uint64_t high = 0, low = 0;
    bool operator==(const Digest&) const = default;
  };
  struct DigestHash {
    size_t operator()(const Digest& digest) const { return static_cast<size_t>(digest.low); }
  };
  enum class Fate : uint8_t { kKept, kDuplicate, kOversized, kInvalid, kEmpty, kBad };
  struct Seen {
    Digest digest;  ///< only set if duplicates are dropped
    Fate fate = Fate::kKept;
  };
  static Digest digest_of(const std::string& sha256);

  void hash_sources(std::vector<InputFile> inputs);
  Fate fate_of(uint64_t bytes, bool valid) const;
  struct Looked {
    std::vector<Seen> documents;
    std::vector<std::string> bad, not_utf8;  ///< the first problems, with their places
  };
  Looked look_through(const Piece& piece) const;
  void warn_of(const std::vector<Looked>& looked) const;
  size_t tail_begin(std::string_view text) const;

  const DataConfig& config_;
  bool lossless_;
  ProgressReport& progress_;
  std::vector<Source> sources_;
  std::vector<PassedOver> passed_over_;
  std::vector<Piece> pieces_;
  std::vector<std::vector<Fate>> fates_;  ///< fate of each document of each piece
  int64_t documents_ = 0, duplicates_ = 0, oversized_ = 0, invalid_ = 0, empty_ = 0, bad_ = 0;
};

}  // namespace dovetail::data
