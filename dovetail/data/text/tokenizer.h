#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail {

/// Text to token ids and back. Thread-safe after construction. decode(encode(text)) == text for any
/// valid UTF-8 (and for any bytes at all with `bytes` and byte-level BPE).
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  virtual int64_t vocab_size() const = 0;
  /// The token put between documents, or -1.
  virtual int32_t end_of_document() const = 0;
  /// "bytes", "bpe" or "sentencepiece".
  virtual std::string kind() const = 0;
  /// The file's content that load_tokenizer reads back (tokenizer.json, a SentencePiece model);
  /// empty for bytes.
  virtual std::string serialized() const = 0;
};

/// Bytes: ids 0..255, 256 ends a document; vocab_size 257.
std::unique_ptr<Tokenizer> bytes_tokenizer();

/// By content: kind "bytes" ignores `content`; "bpe" is a Hugging Face tokenizer.json with
/// byte-level BPE (GPT-2 and Llama-3 split patterns); "sentencepiece" a model. Throws UserError
/// naming what is not supported.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& kind, const std::string& content,
                                          const std::string& name);
std::unique_ptr<Tokenizer> load_tokenizer(
    const std::filesystem::path& path);  ///< kind by the file's name and content

/// Byte-level BPE trained on `texts`, as tokenizer.json; merges are the most frequent pair, ties by
/// lower ids, deterministic.
std::string train_bpe(const std::vector<std::string_view>& texts, int64_t vocab_size,
                      const std::string& split);
std::string train_sentencepiece(const std::vector<std::string_view>& texts, int64_t vocab_size);

}  // namespace dovetail
