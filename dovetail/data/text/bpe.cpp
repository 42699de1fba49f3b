#include "dovetail/data/text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <queue>
#include <unordered_map>

#include "dovetail/base/error.h"
#include "dovetail/data/text/added_tokens.h"
#include "dovetail/data/text/pair_table.h"
#include "dovetail/data/text/tokenizer_json.h"
#include "dovetail/data/text/word_cache.h"

namespace dovetail::data {
namespace {

/// Merges the pairs of one word, lowest rank first, in n log n time for words of any length.
class Merger {
 public:
  struct Rule {
    int32_t rank = -1, result = -1;
  };

  void merge(std::vector<int32_t>& ids, const PairTable<Rule>& rules) {
    symbols_.clear();
    const auto size = static_cast<int32_t>(ids.size());
    for (int32_t i = 0; i < size; ++i)
      symbols_.push_back({ids[static_cast<size_t>(i)], i - 1, i + 1 < size ? i + 1 : -1});
    for (int32_t i = 0; i + 1 < size; ++i) propose(i, rules);
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      Symbol& left = symbols_[static_cast<size_t>(best.at)];
      // The candidate is stale if either side has been merged in the meantime.
      if (left.id != best.left || left.next < 0 ||
          symbols_[static_cast<size_t>(left.next)].id != best.right)
        continue;
      Symbol& right = symbols_[static_cast<size_t>(left.next)];
      left.id = best.result;
      left.next = right.next;
      right.id = -1;
      if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = best.at;
      if (left.previous >= 0) propose(left.previous, rules);
      if (left.next >= 0) propose(best.at, rules);
    }
    ids.clear();
    for (int32_t i = 0; i >= 0; i = symbols_[static_cast<size_t>(i)].next)
      ids.push_back(symbols_[static_cast<size_t>(i)].id);
  }

 private:
  struct Symbol {
    int32_t id, previous, next;
  };
  struct Candidate {
    int32_t rank, at, left, right, result;
    // The queue's top is its greatest element: lowest rank, then leftmost.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  void propose(int32_t at, const PairTable<Rule>& rules) {
    const Symbol& left = symbols_[static_cast<size_t>(at)];
    const Symbol& right = symbols_[static_cast<size_t>(left.next)];
    if (const Rule* rule = rules.find(left.id, right.id))
      queue_.push({rule->rank, at, left.id, right.id, rule->result});
  }

  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> queue_;
};

/// Workspace of one thread while it encodes. It is reused across calls, so that the cache stays
/// warm.
struct Workspace {
  WordCache cache;
  Merger merger;
  std::vector<int32_t> ids;
};

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(std::string content, const std::string& name)
      : content_(std::move(content)),
        file_(parse_tokenizer_json(content_, name)),
        added_(file_.added) {
    for (size_t rank = 0; rank < file_.merges.size(); ++rank) {
      const auto& merge = file_.merges[rank];
      rules_.at(merge.left, merge.right) = {static_cast<int32_t>(rank), merge.result};
    }
    if (file_.ignore_merges) index_words();
    for (const char* content : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"})
      for (const auto& token : file_.added)
        if (end_of_document_ < 0 && token.content == content) end_of_document_ = token.id;
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    auto workspace = borrow();
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 3);
    added_.cut(
        text, [&](std::string_view plain) { encode_plain(plain, *workspace, ids); },
        [&](int32_t id) { ids.push_back(id); });
    give_back(std::move(workspace));
    return ids;
  }

  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      DOVETAIL_CHECK(id >= 0 && id < vocab_size(), "token {} is outside the vocabulary of {}", id,
                     vocab_size());
      text += file_.tokens[static_cast<size_t>(id)];
    }
    return text;
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(file_.tokens.size()); }
  int32_t end_of_document() const override { return end_of_document_; }
  std::string kind() const override { return "bpe"; }
  std::string serialized() const override { return content_; }

 private:
  void index_words() {
    std::vector<bool> added(file_.tokens.size());
    for (const auto& token : file_.added) added[static_cast<size_t>(token.id)] = true;
    for (size_t id = 0; id < file_.tokens.size(); ++id)
      if (!added[id] && !file_.tokens[id].empty())
        whole_words_.emplace(file_.tokens[id], static_cast<int32_t>(id));
  }

  void encode_plain(std::string_view text, Workspace& workspace, std::vector<int32_t>& ids) const {
    while (!text.empty()) {
      const std::string_view word = text.substr(0, first_word(text, file_.split));
      text.remove_prefix(word.size());
      if (workspace.cache.append_known(word, ids)) continue;
      encode_word(word, workspace);
      workspace.cache.remember(word, workspace.ids);
      ids.insert(ids.end(), workspace.ids.begin(), workspace.ids.end());
    }
  }

  void encode_word(std::string_view word, Workspace& workspace) const {
    workspace.ids.clear();
    if (const auto it = whole_words_.find(word); it != whole_words_.end()) {
      workspace.ids.push_back(it->second);
      return;
    }
    for (const char c : word)
      workspace.ids.push_back(file_.byte_ids[static_cast<unsigned char>(c)]);
    workspace.merger.merge(workspace.ids, rules_);
  }

  std::unique_ptr<Workspace> borrow() const {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Workspace>();
    auto workspace = std::move(idle_.back());
    idle_.pop_back();
    return workspace;
  }

  void give_back(std::unique_ptr<Workspace> workspace) const {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

  std::string content_;
  BpeFile file_;
  AddedTokens added_;
  PairTable<Merger::Rule> rules_;
  std::unordered_map<std::string_view, int32_t> whole_words_;  ///< filled only if ignore_merges
  int32_t end_of_document_ = -1;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace

std::unique_ptr<Tokenizer> bpe_tokenizer(const std::string& tokenizer_json,
                                         const std::string& name) {
  return std::make_unique<BpeTokenizer>(tokenizer_json, name);
}

}  // namespace dovetail::data
