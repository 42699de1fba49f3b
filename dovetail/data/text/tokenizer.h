#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail::data {

/// Converts text to token ids and back. Thread-safe after construction. decode(encode(text)) ==
/// text for any valid UTF-8. For `bytes` and byte-level BPE, this holds for any bytes.
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
  /// Returns the file content that load_tokenizer reads: tokenizer.json or a SentencePiece model.
  /// Empty for bytes.
  virtual std::string serialized() const = 0;
};

/// Returns the tokenizer of bytes. Ids 0 to 255 are bytes; 256 ends a document. vocab_size is 257.
std::unique_ptr<Tokenizer> bytes_tokenizer();

/// Creates a tokenizer from the content of its file. `kind` is one of
///
/// - "bytes": ignores `content`
/// - "bpe": a Hugging Face tokenizer.json with byte-level BPE (GPT-2 and Llama-3 split patterns)
/// - "sentencepiece": a SentencePiece model
///
/// Throws UserError that names the unsupported part. `name` stands for the file in errors.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& kind, const std::string& content,
                                          const std::string& name);
/// Loads a tokenizer. The file's name and content determine its kind.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path);

/// Trains byte-level BPE on `texts` and returns it as tokenizer.json. Each merge takes the most
/// frequent pair; among equals, the pair with the lower ids. Deterministic.
std::string train_bpe(const std::vector<std::string_view>& texts, int64_t vocab_size,
                      const std::string& split);
std::string train_sentencepiece(const std::vector<std::string_view>& texts, int64_t vocab_size);

}  // namespace dovetail::data
