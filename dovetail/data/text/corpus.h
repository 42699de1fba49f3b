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

/// Counts the progress of `prepare` and reports it to a callback. Thread-safe; the callback runs in
/// one thread at a time.
class ProgressReport {
 public:
  /// `callback` may be empty; it must outlive this object.
  explicit ProgressReport(const std::function<void(const PrepareProgress&)>& callback)
      : callback_(callback) {}
  /// Begins a stage (PrepareProgress::stage). `documents` and `bytes` are its total work. Sets the
  /// work that is done to 0.
  void begin(const char* stage, int64_t documents, uint64_t bytes);
  /// Adds to the work that is done in this stage.
  void add(int64_t documents, uint64_t bytes);

 private:
  const std::function<void(const PrepareProgress&)>& callback_;
  std::mutex mutex_;
  PrepareProgress now_;
};

/// Returns a number in [0, 1) that depends on `key` alone: the first 53 bits of its SHA-256, as a
/// fraction. Serves to draw a share of documents at random, but reproducibly.
double hashed_share(std::string_view key);

/// Documents that `prepare` converts to tokens: all documents of the input files that are not
/// skipped. A document is a text file, or a record of a JSON or Parquet file. Each document belongs
/// to one split, training or validation. With DataConfig::validation_split = "tail", each is cut
/// instead: a part for training, the end for validation. Threads work on pieces of files (Piece,
/// documents.h). The result depends on the files' content and the config, not on the number of
/// threads.
class Corpus {
 public:
  /// Lists the input files and computes their SHA-256. `lossless`: the tokenizer accepts text that
  /// is not UTF-8, so such text files are not skipped.
  Corpus(const DataConfig& config, bool lossless, ProgressReport& progress);

  /// Input file whose documents are read.
  struct Source {
    InputFile input;
    std::string sha256;       ///< SHA-256 of the file as stored
    std::string text_sha256;  ///< text files only: SHA-256 of the decompressed text
    bool valid = true;        ///< true if the text is UTF-8; checked for text files only
    /// Returns how the file is read (format, kind, bytes of the text) if its name and size do not
    /// tell. Otherwise returns an empty string. The result is a part of fingerprints.
    std::string reading() const;
  };
  const std::vector<Source>& sources() const { return sources_; }
  /// Returns the files that were found but are not read.
  const std::vector<PassedOver>& passed_over() const { return passed_over_; }

  /// Goes through all documents and decides which of them are skipped. Call it once, before the
  /// members below. With bad_row = "error", throws UserError for a bad record
  /// (DataConfig::bad_row). With bad_row = "skip", throws UserError for more than `max_bad_rows`
  /// bad records. Logs warnings about skipped records and texts that are not UTF-8.
  void scan();
  /// Returns the pieces of all files, in order. Threads can process different pieces in parallel.
  const std::vector<Piece>& pieces() const { return pieces_; }
  /// Returns a SHA-256 that identifies what `read` passes to `visit` for this piece. The settings
  /// are not part of it: compare fingerprints only between runs with the same settings.
  std::string fingerprint(size_t piece) const;
  /// Calls `visit` with the documents of a piece that are not skipped, in order. If a document is
  /// cut between the splits, calls `visit` for each of its parts that is not empty. `identity` is
  /// Document::identity.
  void read(size_t piece,
            const std::function<void(Split, std::string_view text, const std::string& identity)>&
                visit) const;

  // Numbers of documents after `scan`. PrepareResult explains them.
  int64_t documents() const { return documents_; }  ///< documents that are not skipped
  int64_t duplicates_skipped() const { return duplicates_; }
  int64_t oversized_skipped() const { return oversized_; }
  int64_t invalid_skipped() const { return invalid_; }
  int64_t empty_skipped() const { return empty_; }  ///< without text: "" or null
  int64_t bad_skipped() const { return bad_; }

 private:
  /// First 128 bits of a SHA-256.
  struct Digest {
    uint64_t high = 0, low = 0;
    bool operator==(const Digest&) const = default;
  };
  struct DigestHash {
    size_t operator()(const Digest& digest) const { return static_cast<size_t>(digest.low); }
  };
  /// Decision about a document: kept, or the reason to skip it.
  enum class Fate : uint8_t { kKept, kDuplicate, kOversized, kInvalid, kEmpty, kBad };
  /// Document that `scan` has read.
  struct Seen {
    Digest digest;  ///< digest of its text, to find duplicates
    Fate fate = Fate::kKept;
  };
  static Digest digest_of(const std::string& sha256);

  void hash_sources(std::vector<InputFile> inputs);
  /// Decides about a document of `bytes` bytes. `valid`: it is UTF-8.
  Fate fate_of(uint64_t bytes, bool valid) const;
  /// Result of reading a piece in `scan`.
  struct Looked {
    std::vector<Seen> documents;
    /// Messages about the first bad records, and about the first texts that are not UTF-8.
    std::vector<std::string> bad, not_utf8;
  };
  Looked look_through(const Piece& piece) const;
  /// Logs warnings about bad records and texts that are not UTF-8. Throws UserError for too many
  /// bad records.
  void warn_of(const std::vector<Looked>& looked) const;
  /// Returns the byte at which the validation part of a document begins (validation_split =
  /// "tail").
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
