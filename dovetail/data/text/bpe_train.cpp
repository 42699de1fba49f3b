#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"
#include "dovetail/data/text/byte_level.h"
#include "dovetail/data/text/pair_table.h"
#include "dovetail/data/text/tokenizer.h"
#include "dovetail/data/text/tokenizer_json.h"

namespace dovetail::data {
namespace {

using WordCounts = std::unordered_map<std::string_view, int64_t>;

WordCounts count_words(const std::vector<std::string_view>& texts, SplitPattern split) {
  constexpr int64_t kPieces = 64;
  const auto size = static_cast<int64_t>(texts.size());
  const int64_t grain = std::max<int64_t>(1, (size + kPieces - 1) / kPieces);
  std::vector<WordCounts> counts(static_cast<size_t>((size + grain - 1) / grain));
  parallel_pieces(size, grain, [&](int64_t begin, int64_t end) {
    WordCounts& mine = counts[static_cast<size_t>(begin / grain)];
    for (int64_t i = begin; i < end; ++i)
      for (std::string_view text = texts[static_cast<size_t>(i)]; !text.empty();) {
        const std::string_view word = text.substr(0, first_word(text, split));
        text.remove_prefix(word.size());
        ++mine[word];
      }
  });
  WordCounts total;
  for (WordCounts& mine : counts) {
    if (total.empty()) total.swap(mine);
    for (const auto& [word, count] : mine) total[word] += count;
    mine.clear();
  }
  return total;
}

/// Counts pairs over all words. Keeps the counts exact after each merge by visiting only words with
/// the merged pair.
class Trainer {
 public:
  Trainer(const WordCounts& words, int64_t num_tokens)
      : num_tokens_(static_cast<size_t>(num_tokens)) {
    std::array<int32_t, 256> id_of_byte{};
    for (const uint8_t byte : byte_level_alphabet()) {
      id_of_byte[byte] = static_cast<int32_t>(tokens_.size());
      add_token(std::string(1, static_cast<char>(byte)));
    }
    for (const auto& [text, count] : words) {
      words_.push_back({symbols_.size(), static_cast<uint32_t>(text.size()), count});
      for (const char c : text) symbols_.push_back(id_of_byte[static_cast<unsigned char>(c)]);
    }
    for (uint32_t w = 0; w < words_.size(); ++w)
      for (uint32_t i = 0; i + 1 < words_[w].length; ++i)
        change(symbol(w, i), symbol(w, i + 1), words_[w].count, w);
    pairs_.for_each([&](int32_t left, int32_t right, const Pair& pair) {
      queue_.push({pair.count, left, right});
    });
  }

  void run() {
    while (tokens_.size() < num_tokens_ && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      Pair& pair = pairs_.at(best.left, best.right);
      if (pair.count != best.count) {  // the count has changed since it was queued
        if (pair.count > 0) queue_.push({pair.count, best.left, best.right});
        continue;
      }
      if (best.count < 1) break;
      merge(best.left, best.right);
    }
  }

  std::vector<std::string> tokens() && { return std::move(tokens_); }
  std::vector<BpeFile::Merge> merges() && { return std::move(merges_); }

 private:
  struct Word {
    size_t begin;  ///< first index in symbols_
    uint32_t length;
    int64_t count;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;  ///< words that contain the pair or once did
  };
  struct Candidate {
    int64_t count;
    int32_t left, right;
    // The queue's top is its greatest element: most frequent, then lowest ids.
    bool operator<(const Candidate& other) const {
      if (count != other.count) return count < other.count;
      return std::pair(left, right) > std::pair(other.left, other.right);
    }
  };

  int32_t& symbol(uint32_t word, uint32_t at) { return symbols_[words_[word].begin + at]; }

  /// Adds a token, or returns its id if it exists. Different merges may produce the same bytes.
  int32_t add_token(std::string bytes) {
    const auto [it, added] = id_of_.emplace(bytes, static_cast<int32_t>(tokens_.size()));
    if (added) tokens_.push_back(std::move(bytes));
    return it->second;
  }

  void change(int32_t left, int32_t right, int64_t by, uint32_t word) {
    Pair& pair = pairs_.at(left, right);
    pair.count += by;
    if (by > 0 && (pair.words.empty() || pair.words.back() != word)) pair.words.push_back(word);
  }

  void merge(int32_t left, int32_t right) {
    const int32_t result =
        add_token(tokens_[static_cast<size_t>(left)] + tokens_[static_cast<size_t>(right)]);
    merges_.push_back({left, right, result});
    std::vector<uint32_t> words;
    words.swap(pairs_.at(left, right).words);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    grown_.clear();
    for (const uint32_t word : words) merge_in_word(word, left, right, result);
    pairs_.at(left, right).count = 0;
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const auto& [a, b] : grown_)
      if (const int64_t count = pairs_.at(a, b).count; count > 0) queue_.push({count, a, b});
  }

  void merge_in_word(uint32_t word, int32_t left, int32_t right, int32_t result) {
    const int64_t count = words_[word].count;
    const uint32_t length = words_[word].length;
    uint32_t out = 0;
    for (uint32_t in = 0; in < length; ++in, ++out) {
      const bool found =
          symbol(word, in) == left && in + 1 < length && symbol(word, in + 1) == right;
      if (!found) {
        symbol(word, out) = symbol(word, in);
        continue;
      }
      if (out > 0) {
        change(symbol(word, out - 1), left, -count, word);
        grow(symbol(word, out - 1), result, count, word);
      }
      if (in + 2 < length) {
        change(right, symbol(word, in + 2), -count, word);
        grow(result, symbol(word, in + 2), count, word);
      }
      symbol(word, out) = result;
      ++in;
    }
    words_[word].length = out;
  }

  void grow(int32_t left, int32_t right, int64_t count, uint32_t word) {
    change(left, right, count, word);
    grown_.emplace_back(left, right);
  }

  size_t num_tokens_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> id_of_;
  std::vector<BpeFile::Merge> merges_;
  std::vector<Word> words_;
  /// Symbols of all words, one word after the other. A word shrinks in place.
  std::vector<int32_t> symbols_;
  PairTable<Pair> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<std::pair<int32_t, int32_t>> grown_;
};

}  // namespace

std::string train_bpe(const std::vector<std::string_view>& texts, int64_t vocab_size,
                      const std::string& split) {
  user_check(vocab_size >= 257,
             "a byte-level vocabulary has at least 257 tokens (256 bytes and the end of a "
             "document), not {}",
             vocab_size);
  BpeFile file;
  file.split = split_pattern(split);
  const WordCounts words = count_words(texts, file.split);
  Trainer trainer(words, vocab_size - 1);
  trainer.run();
  file.tokens = std::move(trainer).tokens();
  file.merges = std::move(trainer).merges();
  const auto end = static_cast<int32_t>(file.tokens.size());
  file.tokens.emplace_back("<|endoftext|>");
  file.added.push_back({"<|endoftext|>", end, true, false});
  return write_tokenizer_json(file);
}

}  // namespace dovetail::data
