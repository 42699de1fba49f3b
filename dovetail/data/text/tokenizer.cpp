#include "dovetail/data/text/tokenizer.h"

#include <fmt/format.h>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/text/bpe.h"
#include "dovetail/data/text/sentencepiece.h"

namespace dovetail::data {
namespace {

class BytesTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }

  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      DOVETAIL_CHECK(id >= 0 && id <= kEndOfDocument, "token {} is outside the vocabulary of {}",
                     id, vocab_size());
      if (id != kEndOfDocument) text.push_back(static_cast<char>(id));
    }
    return text;
  }

  int64_t vocab_size() const override { return kEndOfDocument + 1; }
  int32_t end_of_document() const override { return kEndOfDocument; }
  std::string kind() const override { return "bytes"; }
  std::string serialized() const override { return {}; }

 private:
  static constexpr int32_t kEndOfDocument = 256;
};

}  // namespace

std::unique_ptr<Tokenizer> bytes_tokenizer() { return std::make_unique<BytesTokenizer>(); }

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& kind, const std::string& content,
                                          const std::string& name) {
  if (kind == "bytes") return bytes_tokenizer();
  if (kind == "bpe") return bpe_tokenizer(content, name);
  if (kind == "sentencepiece") return sentencepiece_tokenizer(content, name);
  throw UserError(fmt::format("{}: unknown kind of tokenizer `{}`", name, kind),
                  "use bytes, bpe or sentencepiece");
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path) {
  const std::string content = read_file(path);
  const size_t first = content.find_first_not_of(" \t\r\n");
  const bool json =
      path.extension() == ".json" || (first != std::string::npos && content[first] == '{');
  return make_tokenizer(json ? "bpe" : "sentencepiece", content, path.string());
}

}  // namespace dovetail::data
