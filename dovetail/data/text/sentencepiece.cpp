#include "dovetail/data/text/sentencepiece.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <unordered_map>

#include "dovetail/base/error.h"

namespace dovetail::data {
namespace {

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& name) : model_(std::move(model)) {
    const auto refuse = [&](std::string_view reason) {
      throw UserError(fmt::format("not a SentencePiece model: {}", reason),
                      "give a .model file of SentencePiece or a Hugging Face tokenizer.json", name);
    };
    sentencepiece::util::Status status;
    try {
      status = processor_.LoadFromSerializedProto(model_);
    } catch (const std::exception&) {  // the library's index of pieces ends a key at NUL
      refuse("its pieces cannot be indexed; one may begin with NUL");
    }
    if (!status.ok()) refuse(status.error_message());
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode(text, &ids);
    DOVETAIL_CHECK(status.ok(), "SentencePiece: {}", status.ToString());
    return {ids.begin(), ids.end()};
  }

  std::string decode(const std::vector<int32_t>& ids) const override {
    for (const int32_t id : ids)
      DOVETAIL_CHECK(id >= 0 && id < vocab_size(), "token {} is outside the vocabulary of {}", id,
                     vocab_size());
    std::string text;
    const auto status = processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    DOVETAIL_CHECK(status.ok(), "SentencePiece: {}", status.ToString());
    return text;
  }

  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  int32_t end_of_document() const override { return processor_.eos_id(); }
  std::string kind() const override { return "sentencepiece"; }
  std::string serialized() const override { return model_; }

 private:
  std::string model_;
  sentencepiece::SentencePieceProcessor processor_;
};

/// Passes the lines of texts to the trainer, each with its newline. Cuts lines that the trainer
/// would skip for their length.
class Lines : public sentencepiece::SentenceIterator {
 public:
  static constexpr size_t kLongest = 4096;

  explicit Lines(const std::vector<std::string_view>& texts) : texts_(texts) { Next(); }
  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    while (text_ < texts_.size() && at_ == texts_[text_].size()) {
      ++text_;
      at_ = 0;
    }
    done_ = text_ == texts_.size();
    if (done_) return;
    const std::string_view rest = texts_[text_].substr(at_);
    size_t length = std::min(rest.find('\n'), rest.size() - 1) + 1;
    if (length > kLongest) {
      length = kLongest;
      while (length > 1 && (static_cast<unsigned char>(rest[length]) & 0xC0) == 0x80) --length;
    }
    line_.assign(rest.substr(0, length));
    at_ += length;
  }

 private:
  const std::vector<std::string_view>& texts_;
  size_t text_ = 0, at_ = 0;
  bool done_ = false;
  std::string line_;
};

}  // namespace

std::unique_ptr<Tokenizer> sentencepiece_tokenizer(const std::string& model,
                                                   const std::string& name) {
  return std::make_unique<SentencePieceTokenizer>(model, name);
}

std::string train_sentencepiece(const std::vector<std::string_view>& texts, int64_t vocab_size) {
  // Lossless: no normalization, no prefix space, and white space is kept. Bytes stand for
  // characters that the vocabulary does not have. The number of threads is fixed because sums of
  // probabilities depend on it.
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", "unigram"},
      {"vocab_size", std::to_string(vocab_size)},
      {"hard_vocab_limit", "false"},
      {"character_coverage", "0.9999"},
      {"byte_fallback", "true"},
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"split_digits", "true"},
      {"unk_id", "0"},
      {"bos_id", "-1"},
      {"eos_id", "1"},
      {"pad_id", "-1"},
      {"num_threads", "2"},
      {"max_sentence_length", std::to_string(Lines::kLongest)},
      {"minloglevel", "2"},
  };
  Lines lines(texts);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(options, &lines, &model);
  if (!status.ok())
    throw UserError(fmt::format("SentencePiece cannot train a vocabulary of {} on this text: {}",
                                vocab_size, status.error_message()),
                    "give more text or a smaller data.tokenizer.vocab_size");
  return model;
}

}  // namespace dovetail::data
