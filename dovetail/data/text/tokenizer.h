#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail::data {

/// Converts text to token ids and back. Thread-safe after construction. decode(encode(text)) ==
/// text for any valid UTF-8. For the kinds "bytes" and "bpe", this holds for any bytes.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  virtual int64_t vocab_size() const = 0;
  /// Returns the token that ends each document, or -1 if there is none.
  virtual int32_t end_of_document() const = 0;
  /// Returns "bytes", "bpe" or "sentencepiece".
  virtual std::string kind() const = 0;
  /// Returns the content of the tokenizer's file, which make_tokenizer reads: a tokenizer.json or a
  /// SentencePiece model. Returns an empty string for the kind "bytes", which needs no file.
  virtual std::string serialized() const = 0;
};

/// Returns the tokenizer of kind "bytes". Each byte is a token with the id 0 to 255; id 256 ends a
/// document. vocab_size is 257.
std::unique_ptr<Tokenizer> bytes_tokenizer();

/// Creates a tokenizer from the content of its file. `kind` is one of
///
/// - "bytes": ignores `content`
/// - "bpe": a Hugging Face tokenizer.json with byte-level BPE (GPT-2 and Llama-3 split patterns)
/// - "sentencepiece": a SentencePiece model
///
/// Throws UserError, naming the unsupported part, if the content is not supported. `name` stands
/// for the file in errors.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& kind, const std::string& content,
                                          const std::string& name);
/// Loads a tokenizer from a file. The kind is "bpe" if the file's name ends in .json or its content
/// begins with {, otherwise "sentencepiece".
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path);

/// Trains a byte-level BPE tokenizer on `texts` and returns the content of its tokenizer.json.
/// `split` is "gpt2" or "llama3" (SplitPattern). Each merge joins the most frequent pair of
/// adjacent tokens; among equally frequent ones, the pair with the lower ids. Deterministic.
std::string train_bpe(const std::vector<std::string_view>& texts, int64_t vocab_size,
                      const std::string& split);
/// Trains a SentencePiece tokenizer on `texts` and returns the content of its model file.
std::string train_sentencepiece(const std::vector<std::string_view>& texts, int64_t vocab_size);

}  // namespace dovetail::data
