#include "dovetail/data/text/prepare.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/base/threads.h"
#include "dovetail/data/text/corpus.h"
#include "dovetail/data/text/manifest.h"
#include "dovetail/data/text/token_shard.h"
#include "dovetail/data/text/tokenizer.h"

namespace dovetail::data {
namespace {

namespace fs = std::filesystem;

// Bytes of text per shard, for 64 MB of two-byte tokens. A token has one byte of text, or about
// four with a trained vocabulary.
constexpr uint64_t kShardBytesOfBytes = uint64_t{32} << 20;
constexpr uint64_t kShardBytesOfWords = uint64_t{128} << 20;

// Maximum bytes of text that a tokenizer is trained on.
constexpr uint64_t kBpeTrainingBytes = uint64_t{256} << 20;
constexpr uint64_t kSentencePieceTrainingBytes = uint64_t{4} << 20;

/// Locks a folder, since only one process may write it. Another process waits.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder)
      : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    int result = -1;
    while (fd_ >= 0 && (result = flock(fd_, LOCK_EX)) != 0 && errno == EINTR) {
    }
    if (result != 0) {
      const int reason = errno;
      if (fd_ >= 0) close(fd_);
      throw UserError(
          fmt::format("cannot lock the folder {}: {}", folder.string(), std::strerror(reason)));
    }
  }
  ~FolderLock() { close(fd_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

/// Tokens of one piece's documents, for each split.
struct PieceTokens {
  std::vector<int32_t> tokens[2];
  uint64_t text_bytes[2] = {0, 0};
};

class Preparation {
 public:
  Preparation(const DataConfig& config, const fs::path& folder,
              const std::function<void(const PrepareProgress&)>& progress)
      : config_(config),
        folder_(folder),
        progress_(progress),
        corpus_(config, config.tokenizer.kind != "sentencepiece", progress_) {
    if (!config.tokenizer.path.empty()) given_ = read_file(config.tokenizer.path);
    manifest_.settings = settings();
    for (const auto& source : corpus_.sources())
      manifest_.sources.push_back({source.input.relative, source.input.bytes, source.sha256});
    std::string key = manifest_.settings;
    for (const auto& source : manifest_.sources)
      key += fmt::format("\n{}\t{}\t{}", source.path, source.bytes, source.sha256);
    for (const auto& source : corpus_.sources()) key += source.reading();
    manifest_.fingerprint = sha256_of(key);
  }

  PrepareResult run() {
    const FolderLock lock(folder_);
    if (auto before = up_to_date()) return result(*before, true);
    // From here on, the folder is not a store until the new manifest is written.
    fs::remove(folder_ / TokenManifest::kFile);
    sync_folder(folder_);
    remove_leftovers(folder_);
    if (const std::string passed = describe_passed_over(corpus_.passed_over()); !passed.empty())
      log_info("{}", passed);
    corpus_.scan();
    manifest_.documents = static_cast<uint64_t>(corpus_.documents());
    manifest_.duplicates_skipped = static_cast<uint64_t>(corpus_.duplicates_skipped());
    manifest_.oversized_skipped = static_cast<uint64_t>(corpus_.oversized_skipped());
    manifest_.invalid_skipped = static_cast<uint64_t>(corpus_.invalid_skipped());
    manifest_.empty_skipped = static_cast<uint64_t>(corpus_.empty_skipped());
    manifest_.bad_skipped = static_cast<uint64_t>(corpus_.bad_skipped());
    user_check(manifest_.documents > 0,
               "no document is left of {} files: {} too large, {} not UTF-8, {} without text, {} "
               "bad records",
               manifest_.sources.size(), manifest_.oversized_skipped, manifest_.invalid_skipped,
               manifest_.empty_skipped, manifest_.bad_skipped);
    make_tokenizer_file();
    write_shards();
    check_splits();
    write_file_atomically(folder_ / TokenManifest::kFile, write_manifest(manifest_));
    remove_strangers();
    return result(manifest_, false);
  }

 private:
  bool trains() const { return given_.empty() && config_.tokenizer.kind != "bytes"; }

  /// Returns the settings that determine the result, in addition to the files. A given tokenizer is
  /// recorded by its content.
  std::string settings() const {
    nlohmann::json tokenizer = {{"kind", config_.tokenizer.kind}};
    if (!given_.empty()) tokenizer["sha256"] = sha256_of(given_);
    if (trains()) {
      tokenizer["vocab_size"] = config_.tokenizer.vocab_size;
      tokenizer["training_bytes"] = training_limit();
      if (config_.tokenizer.kind == "bpe") tokenizer["split"] = config_.tokenizer.split;
    }
    nlohmann::json settings = {{"tokenizer", tokenizer},
                               {"text_field", config_.text_field},
                               {"validation_fraction", config_.validation_fraction},
                               {"validation_split", config_.validation_split},
                               {"deduplicate", config_.deduplicate},
                               {"max_document_bytes", config_.max_document_bytes}};
    // With the default, a bad record makes no folder. The default is not written, so that folders
    // of older versions stay valid.
    if (config_.bad_row != "error") settings["bad_row"] = config_.bad_row;
    return settings.dump();
  }

  /// Returns the existing manifest if its files and settings are the same and its shards are
  /// complete.
  std::optional<TokenManifest> up_to_date() const {
    const fs::path path = folder_ / TokenManifest::kFile;
    if (!fs::exists(path)) return std::nullopt;
    TokenManifest before;
    try {
      before = parse_manifest(read_file(path), path.string());
    } catch (const UserError& e) {
      throw UserError(fmt::format("{} is in the way: {}", path.string(), e.what()),
                      "delete the folder, or name another with data.path");
    }
    if (before.fingerprint != manifest_.fingerprint) return std::nullopt;
    try {
      const TokenStore store(folder_);
    } catch (const UserError&) {
      return std::nullopt;  // rebuilt from the shards that are complete
    }
    return before;
  }

  uint64_t training_limit() const {
    return config_.tokenizer.kind == "bpe" ? kBpeTrainingBytes : kSentencePieceTrainingBytes;
  }

  void make_tokenizer_file() {
    const std::string& kind = config_.tokenizer.kind;
    manifest_.tokenizer.kind = kind;
    tokenizer_ = kind == "bytes"   ? bytes_tokenizer()
                 : !given_.empty() ? make_tokenizer(kind, given_, config_.tokenizer.path)
                                   : make_tokenizer(kind, train(), "the trained tokenizer");
    manifest_.tokenizer.vocab_size = tokenizer_->vocab_size();
    const std::string content = tokenizer_->serialized();
    if (content.empty()) return;
    manifest_.tokenizer.file = kind == "bpe" ? "tokenizer.json" : "tokenizer.model";
    manifest_.tokenizer.sha256 = sha256_of(content);
    write_file_atomically(folder_ / manifest_.tokenizer.file, content);
  }

  /// Trains a tokenizer on the training split. Beyond the limit, trains on documents drawn by a
  /// hash of their identity.
  std::string train() {
    uint64_t total = 0;
    for (const Piece& piece : corpus_.pieces()) total += piece.bytes;
    const double share = std::min(1.0, static_cast<double>(training_limit()) /
                                           static_cast<double>(std::max<uint64_t>(total, 1)));
    progress_.begin("training the tokenizer", static_cast<int64_t>(corpus_.pieces().size()), total);
    std::vector<std::vector<std::string>> texts(corpus_.pieces().size());
    parallel_pieces(static_cast<int64_t>(texts.size()), 8, [&](int64_t begin, int64_t end) {
      for (auto p = static_cast<size_t>(begin); p < static_cast<size_t>(end); ++p) {
        corpus_.read(p, [&](Split split, std::string_view text, const std::string& identity) {
          if (split == Split::kTrain && hashed_share("train " + identity) < share)
            texts[p].emplace_back(text);
        });
        progress_.add(1, corpus_.pieces()[p].bytes);
      }
    });
    std::vector<std::string_view> views;
    for (const auto& piece : texts)
      for (const std::string& text : piece) {
        views.emplace_back(text);
        manifest_.tokenizer.trained_on_bytes += text.size();
      }
    const TokenizerConfig& wanted = config_.tokenizer;
    return wanted.kind == "bpe" ? train_bpe(views, wanted.vocab_size, wanted.split)
                                : train_sentencepiece(views, wanted.vocab_size);
  }

  void write_shards() {
    const auto& pieces = corpus_.pieces();
    uint64_t total = 0;
    for (const Piece& piece : pieces) total += piece.bytes;
    progress_.begin("tokenizing", static_cast<int64_t>(pieces.size()), total);
    const uint64_t target =
        config_.tokenizer.kind == "bytes" ? kShardBytesOfBytes : kShardBytesOfWords;
    for (size_t begin = 0, number = 0; begin < pieces.size(); ++number) {
      size_t end = begin;
      for (uint64_t bytes = 0;
           end < pieces.size() && (end == begin || bytes + pieces[end].bytes <= target); ++end)
        bytes += pieces[end].bytes;
      write_shard_pair(begin, end, number);
      begin = end;
    }
  }

  static std::string shard_name(int split, size_t number) {
    return fmt::format("{}-{:05}.tokens", split == 0 ? "train" : "validation", number);
  }

  /// Writes the shards of both splits for pieces [begin, end), unless an earlier run has finished
  /// them.
  void write_shard_pair(size_t begin, size_t end, size_t number) {
    std::string key = fmt::format("{}\n{}\n", manifest_.settings, manifest_.tokenizer.sha256);
    for (size_t p = begin; p < end; ++p) key += corpus_.fingerprint(p) + "\n";
    const std::string fingerprint = sha256_of(key);
    const auto finished = finished_pair(number, fingerprint);
    if (finished) {
      for (int split = 0; split < 2; ++split)
        add_shard(split, (*finished)[static_cast<size_t>(split)]);
      for (size_t p = begin; p < end; ++p) progress_.add(1, corpus_.pieces()[p].bytes);
      return;
    }
    std::vector<PieceTokens> done(end - begin);
    parallel_pieces(static_cast<int64_t>(done.size()), 1, [&](int64_t first, int64_t last) {
      for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
        done[i] = tokenize(begin + i);
        progress_.add(1, corpus_.pieces()[begin + i].bytes);
      }
    });
    for (int split = 0; split < 2; ++split) {
      ShardHeader header{token_width(tokenizer_->vocab_size()), 0, 0, fingerprint};
      std::vector<std::span<const int32_t>> parts;
      for (const PieceTokens& piece : done) {
        parts.emplace_back(piece.tokens[split]);
        header.count += piece.tokens[split].size();
        header.text_bytes += piece.text_bytes[split];
      }
      const std::string name = shard_name(split, number);
      add_shard(split, {name, header.count, header.text_bytes,
                        write_shard(folder_ / name, header, parts)});
    }
  }

  std::optional<std::array<TokenManifest::Shard, 2>> finished_pair(
      size_t number, const std::string& fingerprint) const {
    std::array<TokenManifest::Shard, 2> pair;
    for (int split = 0; split < 2; ++split) {
      const std::string name = shard_name(split, number);
      if (!fs::exists(folder_ / name)) return std::nullopt;
      try {
        const MappedFile file(folder_ / name);
        const ShardHeader header = read_shard_header(file.bytes(), name);
        if (header.fingerprint != fingerprint) return std::nullopt;
        pair[static_cast<size_t>(split)] = {name, header.count, header.text_bytes,
                                            sha256_of_file(folder_ / name)};
      } catch (const UserError&) {
        return std::nullopt;  // not a shard of this program, or incomplete: write it
      }
    }
    return pair;
  }

  void add_shard(int split, const TokenManifest::Shard& shard) {
    auto& part = manifest_.splits[split];
    part.tokens += shard.tokens;
    part.text_bytes += shard.text_bytes;
    part.shards.push_back(shard);
  }

  PieceTokens tokenize(size_t piece) const {
    PieceTokens done;
    const int32_t end = tokenizer_->end_of_document();
    corpus_.read(piece, [&](Split split, std::string_view text, const std::string&) {
      auto& tokens = done.tokens[static_cast<int>(split)];
      const auto encoded = tokenizer_->encode(text);
      tokens.insert(tokens.end(), encoded.begin(), encoded.end());
      if (end >= 0) tokens.push_back(end);
      done.text_bytes[static_cast<int>(split)] += text.size();
    });
    return done;
  }

  void check_splits() const {
    user_check(manifest_.splits[0].tokens > 0,
               "all {} documents fell into the validation split; lower data.validation_fraction",
               manifest_.documents);
    if (manifest_.splits[1].tokens == 0 && config_.validation_fraction > 0)
      throw UserError(
          fmt::format("none of {} documents fell into the validation split (1 in {:.0f})",
                      manifest_.documents, 1 / config_.validation_fraction),
          "--set data.validation_split=tail holds out the end of each document instead");
  }

  /// Removes shards and tokenizers of other settings.
  void remove_strangers() const {
    std::set<std::string> ours = {manifest_.tokenizer.file};
    for (const auto& split : manifest_.splits)
      for (const auto& shard : split.shards) ours.insert(shard.file);
    std::vector<fs::path> strangers;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      const bool shard = entry.path().extension() == ".tokens" &&
                         (name.starts_with("train-") || name.starts_with("validation-"));
      if ((shard || name == "tokenizer.json" || name == "tokenizer.model") && !ours.contains(name))
        strangers.push_back(entry.path());
    }
    for (const fs::path& path : strangers) fs::remove(path);
  }

  PrepareResult result(const TokenManifest& manifest, bool reused) const {
    PrepareResult result;
    result.folder = folder_;
    result.documents = static_cast<int64_t>(manifest.documents);
    result.train_tokens = static_cast<int64_t>(manifest.splits[0].tokens);
    result.validation_tokens = static_cast<int64_t>(manifest.splits[1].tokens);
    result.train_bytes = manifest.splits[0].text_bytes;
    result.validation_bytes = manifest.splits[1].text_bytes;
    result.duplicates_skipped = static_cast<int64_t>(manifest.duplicates_skipped);
    result.oversized_skipped = static_cast<int64_t>(manifest.oversized_skipped);
    result.invalid_skipped = static_cast<int64_t>(manifest.invalid_skipped);
    result.empty_skipped = static_cast<int64_t>(manifest.empty_skipped);
    result.bad_skipped = static_cast<int64_t>(manifest.bad_skipped);
    result.passed_over = corpus_.passed_over();
    result.sha256 = sha256_of_file(folder_ / TokenManifest::kFile);
    result.reused = reused;
    return result;
  }

  const DataConfig& config_;
  fs::path folder_;
  ProgressReport progress_;
  Corpus corpus_;
  std::string given_;  ///< content of the given tokenizer's file, if any
  TokenManifest manifest_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

}  // namespace

PrepareResult prepare(const DataConfig& config, const fs::path& folder,
                      const std::function<void(const PrepareProgress&)>& progress) {
  config.check();
  std::error_code error;
  fs::create_directories(folder, error);
  user_check(!error, "cannot make the folder {}: {}", folder.string(), error.message());
  return Preparation(config, folder, progress).run();
}

}  // namespace dovetail::data
